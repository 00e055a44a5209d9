"""A port that falls to 100 Mbit/s between two hosts is named as a link; a slow processor is named as a rank."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest
from tests.faults.hosts import Hosts, can_make_hosts, two_hosts

from llmctl.diagnosis.config import DiagnoseConfig
from llmctl.diagnosis.stage import Diagnosis, diagnose

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.distributed,
    pytest.mark.skipif(not can_make_hosts(), reason="network namespaces need root and iproute2"),
]
# Wide enough that its gradients (5 MB) are felt at 100 Mbit/s.
WIDER = ["--set", "model.hidden_size=128", "--set", "model.ffn_hidden_size=512", "--set", "model.num_layers=4"]


def _run(
    shards: Path, output: Path, shape: list[str], steps: int, slow_down: dict[int, str]
) -> tuple[Diagnosis, Hosts]:
    """Train on two hosts; at each step named, limit host 1's card to a rate."""
    with two_hosts() as hosts:
        flags = [*shape, *WIDER, "--engine", "native", "--steps", str(steps), "--quiet", "--precision", "fp32"]
        flags += ["--nodes", "2", "--rendezvous", f"{hosts.addresses[0]}:29517", "--processes", "1"]
        flags += ["--validate-every", "0", "--checkpoint-every", "0"]
        command = [sys.executable, "-m", "llmctl", "pretrain", str(shards), str(output), *flags]
        runs = [hosts.start(number, [*command, "--node-rank", str(number)]) for number in (0, 1)]
        metrics, left = output / "metrics.jsonl", dict(slow_down)
        while left and all(run.poll() is None for run in runs):
            reached = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
            for step in [step for step in left if reached >= step]:
                hosts.limit(1, left.pop(step))
            time.sleep(0.02)
        told = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0] and not left, told
    return diagnose(output, DiagnoseConfig()), hosts


def _link(diagnosis: Diagnosis, hosts: Hosts):
    (finding,) = [finding for finding in diagnosis.findings if finding.rule == "slow_link"]
    assert finding.link == " – ".join(sorted(hosts.addresses))
    assert "slow_rank" not in {finding.rule for finding in diagnosis.findings}
    return finding


def test_at_once(shards, shape, tmp_path: Path) -> None:
    diagnosis, hosts = _run(shards, tmp_path / "run", shape, 90, {50: "100mbit"})
    finding = _link(diagnosis, hosts)
    assert 45 <= finding.step <= 60
    # One direction of the ring is limited: what is measured is that direction's rate, on a machine with other work.
    assert 50e6 < finding.values["bytes_per_s"] * 8 < 200e6
    assert finding.values["expected_bytes_per_s"] > 4 * finding.values["bytes_per_s"]
    assert finding.values["share"] > 0.5
    assert finding.values["step_after_s"] > 2 * finding.values["step_before_s"]
    text = json.dumps(finding.to_mapping())
    assert "Mbit/s" in text and "--probe-network" in text


def test_in_four_stages_full_grid(shards, shape, tmp_path: Path) -> None:
    stages = {40: "1000mbit", 60: "400mbit", 80: "200mbit", 100: "100mbit"}
    diagnosis, hosts = _run(shards, tmp_path / "run", shape, 130, stages)
    finding = _link(diagnosis, hosts)
    assert 38 <= finding.step <= 100
    assert 50e6 < finding.values["bytes_per_s"] * 8 < 200e6


def test_an_unchanged_link_is_left_in_peace(shards, shape, tmp_path: Path) -> None:
    diagnosis, _ = _run(shards, tmp_path / "run", shape, 60, {})
    assert "slow_link" not in {finding.rule for finding in diagnosis.findings}


@pytest.mark.parametrize("slow_host", [None, 0, 1])
def test_the_probe_names_the_slow_direction(slow_host: int | None) -> None:
    with two_hosts() as hosts:
        if slow_host is not None:
            hosts.limit(slow_host, "100mbit")
        command = [sys.executable, "-m", "llmctl", "diagnose", "--probe-network", "--device", "cpu", "--json"]
        command += ["--nodes", "2", "--rendezvous", f"{hosts.addresses[0]}:29518"]
        runs = [hosts.start(number, [*command, "--node-rank", str(number)], read=True) for number in (0, 1)]
        told = [run.communicate(timeout=200) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    result = json.loads(told[0][0])
    slow = [link for link in result["links"] if link["slow"]]
    assert len(result["links"]) == 2
    if slow_host is None:
        assert slow == []
        return
    (link,) = slow
    assert hosts.addresses[slow_host] in link["from_host"] and hosts.addresses[1 - slow_host] in link["to_host"]
    assert link["bytes_per_s"] * 8 == pytest.approx(100e6, rel=0.3)
    assert hosts.addresses[slow_host] in result["verdict"]
