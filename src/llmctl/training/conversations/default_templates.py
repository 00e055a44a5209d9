"""Chat templates for tokenizers that bring none. They are saved with the model and used from there."""

from __future__ import annotations

_TOOLS = (
    "{{- '# Tools\\n\\nYou may call one or more of these functions:\\n<tools>' }}"
    "{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}"
    '{{- \'\\n</tools>\\n\\nTo call one, answer with <tool_call>{"name": …, "arguments": …}</tool_call>.\' }}'
)

# ChatML, for tokenizers with <|im_start|> and <|im_end|> (those of `llmctl tokenize` among them).
CHATML = (
    "{{- BOS }}"
    "{%- if tools %}"
    "{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}"
    f"{_TOOLS}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- for message in messages %}"
    "{%- if not (tools and loop.first and message.role == 'system') %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# Plain text, for tokenizers without chat tokens: adding some would need new, untrained rows in the embedding.
PLAIN = (
    "{{- BOS }}"
    "{%- for message in messages %}"
    "{%- if message.role == 'assistant' %}{{- '### Assistant:\\n' + message.content + eos_token + '\\n\\n' }}"
    "{%- else %}{{- '### ' + (message.role | capitalize) + ':\\n' + message.content + '\\n\\n' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '### Assistant:\\n' }}{%- endif %}"
)


def default_template(has_chat_tokens: bool, needs_bos: bool) -> str:
    """Return the template for a tokenizer that has none.

    Args:
        has_chat_tokens: the tokenizer knows ``<|im_start|>`` and ``<|im_end|>``.
        needs_bos: its model was trained with a token at the beginning of each text.
    """
    return (CHATML if has_chat_tokens else PLAIN).replace("{{- BOS }}", "{{- bos_token }}" if needs_bos else "")
