"""Runs are read as they are found: cut off, broken, unfinished, of other tools."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from llmctl.diagnosis.columns import columns_of
from llmctl.diagnosis.readers.fast import read_fast
from llmctl.diagnosis.readers.load import load_evidence
from llmctl.errors import UserError


def write_lines(folder: Path, *lines: str, name: str = "metrics.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(lines))
    return folder


class TestRunFolder:
    def test_a_cut_last_line_and_a_broken_one(self, tmp_path: Path) -> None:
        run = write_lines(
            tmp_path / "run", '{"step": 1, "loss": 2.0}\n', "garbage\n", '{"step": 2, "loss": 1.5}\n', '{"st'
        )
        evidence = load_evidence(run)
        assert evidence.series("loss").values.tolist() == [2.0, 1.5]
        assert any("line 2" in note for note in evidence.notes)
        assert any("cut off" in note for note in evidence.notes)

    @pytest.mark.parametrize("token", ["NaN", "null", '"nan"'])
    def test_nan_in_every_spelling(self, tmp_path: Path, token: str) -> None:
        run = write_lines(tmp_path / "run", '{"step": 1, "loss": 2.0}\n', f'{{"step": 2, "loss": {token}}}\n')
        assert np.isnan(load_evidence(run).raw("loss").values[1])

    @pytest.mark.parametrize("token", ["Infinity", '"inf"', "1e999"])
    def test_infinity_in_every_spelling(self, tmp_path: Path, token: str) -> None:
        run = write_lines(tmp_path / "run", f'{{"step": 1, "loss": {token}}}\n')
        assert np.isinf(load_evidence(run).raw("loss").values[0])

    def test_a_column_of_nulls_was_not_logged(self, tmp_path: Path) -> None:
        run = write_lines(tmp_path / "run", '{"step": 1, "loss": 2.0, "kl": null}\n')
        assert "kl" not in load_evidence(run).metrics

    def test_of_a_repeated_step_the_last_counts_and_the_restart_is_known(self, tmp_path: Path) -> None:
        steps = [1, 2, 3, 4, 3, 4, 5]
        run = write_lines(
            tmp_path / "run", *(f'{{"step": {step}, "loss": {place}}}\n' for place, step in enumerate(steps))
        )
        evidence = load_evidence(run)
        assert evidence.raw("loss").steps.tolist() == [1, 2, 3, 4, 5]
        assert evidence.raw("loss").values.tolist() == [0, 1, 4, 5, 6]
        assert evidence.restarts == [3]

    def test_ranks_validation_and_configuration(self, tmp_path: Path) -> None:
        run = write_lines(tmp_path / "run", '{"step": 1, "loss": 2.0}\n')
        write_lines(run, '{"step": 1, "loss": 2.1, "perplexity": 8.2}\n', name="validation.jsonl")
        write_lines(run / "events", '{"step": 1, "comm": {"dp": {"bytes": 12}}}\n', name="rank-0.jsonl")
        write_lines(run / "events", '{"step": 1, "step_time_s": 0.1}\n{"st', name="rank-00011.jsonl")
        write_lines(run, "model:\n  vocab_size: 300\nmax_grad_norm: 1e-1\n", name="config.yaml")
        write_lines(run / "_state", '{"stage": "pretrain", "config": {}}', name="claim.json")
        evidence = load_evidence(run)
        assert evidence.validation_loss()["validation"].values.tolist() == [2.1]
        assert evidence.ranks[0].series("comm.dp.bytes").values.tolist() == [12]
        assert sorted(evidence.ranks) == [0, 11]
        assert (evidence.number("vocab_size"), evidence.number("max_grad_norm")) == (300, 0.1)
        assert (evidence.stage, evidence.finished) == ("pretrain", False)

    def test_several_validation_sets(self, tmp_path: Path) -> None:
        run = write_lines(tmp_path / "run", '{"step": 1, "loss": 2.0}\n')
        lines = ('{"step": 1, "set": "web", "loss": 2.1}\n', '{"step": 1, "set": "code", "loss": 1.1}\n')
        write_lines(run, *lines, name="validation.jsonl")
        assert sorted(load_evidence(run).validation_loss()) == ["code", "web"]

    def test_numbers_that_json_holds_and_floats_do_not(self, tmp_path: Path) -> None:
        run = write_lines(tmp_path / "run", f'{{"step": 1, "loss": {"9" * 400}, "note": "text", "list": [1]}}\n')
        assert np.isinf(load_evidence(run).raw("loss").values[0])


class TestForeignRuns:
    def test_trainer_state_of_the_newest_checkpoint(self, tmp_path: Path) -> None:
        for step in (9, 10):
            history = [
                {"step": 1, "epoch": 0.1, "loss": 3.0, "grad_norm": 1.0, "learning_rate": 1e-5},
                {"step": 2, "loss": float("nan"), "grad_norm": 2.0, "learning_rate": 2e-5},
                {"step": 2, "eval_loss": 3.1, "eval_runtime": 2},
                {"step": step, "train_loss": 2.9, "train_runtime": 12.0},
            ]
            folder = tmp_path / f"checkpoint-{step}"
            folder.mkdir()
            state = {"log_history": history, "global_step": step, "max_steps": 10}
            (folder / "trainer_state.json").write_text(json.dumps(state))
        evidence = load_evidence(tmp_path)
        assert evidence.origin == "Hugging Face Trainer" and evidence.finished
        assert evidence.raw("loss").steps.tolist() == [1, 2] and np.isnan(evidence.raw("loss").values[1])
        assert evidence.series("lr").values.tolist() == [1e-5, 2e-5]
        assert evidence.validation_loss()["validation"].values.tolist() == [3.1]

    def test_tensorboard(self, tmp_path: Path) -> None:
        torch_board = pytest.importorskip("torch.utils.tensorboard")
        for name, scale in (("train", 1.0), ("val", 1.1)):
            writer = torch_board.SummaryWriter(str(tmp_path / name))
            for step in range(1, 31):
                writer.add_scalar("loss", scale * 3 / step, step)
            writer.close()
        evidence = load_evidence(tmp_path)
        assert evidence.origin == "TensorBoard"
        assert len(evidence.series("loss")) == 30
        assert evidence.validation_loss()["validation"].values[0] == pytest.approx(3.3)

    def test_a_cut_event_file_is_read_as_far_as_it_goes(self, tmp_path: Path) -> None:
        torch_board = pytest.importorskip("torch.utils.tensorboard")
        writer = torch_board.SummaryWriter(str(tmp_path))
        for step in range(1, 101):
            writer.add_scalar("train/loss", 1.0, step)
        writer.close()
        (path,) = tmp_path.glob("*tfevents*")
        path.write_bytes(path.read_bytes()[:-37])
        assert 90 <= len(load_evidence(path).series("loss")) < 100

    @pytest.mark.parametrize("mark", [",", ";", "\t"])
    def test_a_table(self, tmp_path: Path, mark: str) -> None:
        rows = [["Step", "Loss", "val_loss"], ["1", "3.0", ""], ["2", "nan", "3.1"], ["x"], ["3", "2.0", ""]]
        path = tmp_path / "log.csv"
        path.write_text("\ufeff" + "\n".join(mark.join(row) for row in rows))
        evidence = load_evidence(path)
        assert evidence.raw("loss").steps.tolist() == [1, 2, 3]
        assert evidence.validation_loss()["validation"].steps.tolist() == [2]
        assert "1 lines" in evidence.notes[0]

    def test_two_columns_without_names(self, tmp_path: Path) -> None:
        path = tmp_path / "log.csv"
        path.write_text("10,3.0\n20,2.5\n")
        assert load_evidence(path).raw("loss").steps.tolist() == [10, 20]


class TestNothingToJudge:
    def problem(self, path: Path) -> str:
        with pytest.raises(UserError) as failure:
            load_evidence(path)
        assert failure.value.hint
        return failure.value.problem

    def test_missing(self, tmp_path: Path) -> None:
        assert "does not exist" in self.problem(tmp_path / "nothing")

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        assert "is empty" in self.problem(tmp_path)

    def test_an_empty_log(self, tmp_path: Path) -> None:
        assert "not finished a step" in self.problem(write_lines(tmp_path / "run", ""))

    @pytest.mark.parametrize("text", ["\x00\x01\x02", "[1, 2]\n", '{"step"', "[" * 100000])
    def test_a_log_without_objects(self, tmp_path: Path, text: str) -> None:
        assert "no line of JSON" in self.problem(write_lines(tmp_path / "run", text))

    def test_a_log_without_numbers(self, tmp_path: Path) -> None:
        assert "no numbers" in self.problem(write_lines(tmp_path / "run", '{"step": 1, "text": "a"}\n'))

    def test_another_stages_folder(self, tmp_path: Path) -> None:
        write_lines(tmp_path / "clean", '{"stage": "filter"}', name="manifest.json")
        assert "llmctl filter" in self.problem(tmp_path / "clean")

    def test_a_run_that_has_just_begun(self, tmp_path: Path) -> None:
        (tmp_path / "run" / "_state").mkdir(parents=True)
        assert "not logged a step" in self.problem(tmp_path / "run")

    def test_a_folder_of_runs_names_one(self, tmp_path: Path) -> None:
        write_lines(tmp_path / "runs" / "first", '{"step": 1, "loss": 1}\n')
        with pytest.raises(UserError) as failure:
            load_evidence(tmp_path / "runs")
        assert "first" in str(failure.value.hint)

    def test_foreign_files(self, tmp_path: Path) -> None:
        (tmp_path / "picture.png").write_bytes(b"\x89PNG")
        assert "no log" in self.problem(tmp_path / "picture.png")
        (tmp_path / "a.json").write_text('{"log_history": 3')
        assert "trainer state" in self.problem(tmp_path / "a.json")
        (tmp_path / "b.csv").write_text("name,age\nx,3\n")
        assert "no column named loss" in self.problem(tmp_path / "b.csv")
        (tmp_path / "events.out.tfevents.1").write_bytes(b"not an event file at all")
        assert "no training curve" in self.problem(tmp_path / "events.out.tfevents.1")


class TestFastReading:
    def rows(self, count: int = 4000) -> list[str]:
        return [
            f'{{"step": {step}, "step_time_s": {1 + step / 1e4}, "forward_s": 1}}\n' for step in range(1, count + 1)
        ]

    def read(self, tmp_path: Path, lines: list[str]):
        run = write_lines(tmp_path / "run", '{"step": 1, "loss": 2.0}\n')
        write_lines(run / "events", *lines, name="rank-0.jsonl")
        return load_evidence(run)

    def test_a_long_log_reads_as_the_tolerant_reader_does(self, tmp_path: Path) -> None:
        lines = self.rows()
        path = write_lines(tmp_path, *lines, name="rank-0.jsonl") / "rank-0.jsonl"
        fast = read_fast(path)
        assert fast is not None
        slow = columns_of([json.loads(line) for line in lines])
        assert fast.names == slow.names
        for name in slow.names:
            assert np.array_equal(fast.series(name).steps, slow.series(name).steps)
            assert np.array_equal(fast.series(name).values, slow.series(name).values)

    @pytest.mark.parametrize(
        "odd",
        [
            '{"step": 9999, "step_time_s": NaN}\n',
            '{"step": 9999, "step_time_s": null, "forward_s": 1}\n',
            '{"step": 5, "step_time_s": 7, "forward_s": 1}\n',
            '{"step": 9998, "step_time_s": 1, "forward_s": 1} {"step": 9999, "step_time_s": 1, "forward_s": 1}\n',
            '{"step": 9999, "step_ti',
        ],
    )
    def test_odd_lines_fall_back_and_lose_nothing(self, tmp_path: Path, odd: str) -> None:
        path = write_lines(tmp_path, *self.rows(), odd, name="rank-0.jsonl") / "rank-0.jsonl"
        assert read_fast(path) is None
        assert len(self.read(tmp_path, [*self.rows(), odd]).ranks[0].series("forward_s")) >= 4000


def test_an_exchange_under_the_backward_pass_counts_as_communication(tmp_path: Path) -> None:
    rows = [
        {"step": step, "loss": 2.0, "step_time_s": 1.0, "backward_s": 0.7, "communication_s": 0.1}
        | {"dp_hidden_wait_s": 0.5 if step > 2 else 0.9}
        for step in range(1, 6)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics = load_evidence(tmp_path).metrics
    assert metrics.series("backward_s").values.tolist() == pytest.approx([0, 0, 0.2, 0.2, 0.2])
    assert metrics.series("communication_s").values.tolist() == pytest.approx([0.8, 0.8, 0.6, 0.6, 0.6])
