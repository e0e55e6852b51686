"""Programs that measure models and servers, against the bundled model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

QUESTIONS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((2, 3), (1, 1))]


@pytest.mark.parametrize("kind", ["local-completions", "local-chat-completions"])
def test_lm_eval(url: str, kind: str, tmp_path: Path) -> None:
    import lm_eval

    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    task: Any = {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "output_type": "generate_until",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 20, "temperature": 0},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean"}],
    }
    is_chat = "chat" in kind
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    options = {"model": "demo", "base_url": url + path, "tokenizer_backend": "None"}
    found: Any = lm_eval.simple_evaluate(
        model=kind,
        model_args=options | {"tokenized_requests": False},
        tasks=[task],
        apply_chat_template=is_chat,
        bootstrap_iters=0,
    )
    said = [sample["filtered_resps"][0] for sample in found["samples"]["sums"]]
    assert len(said) == len(QUESTIONS)
    assert not is_chat or ("5" in said[0] and "2" in said[1])


def test_guidellm(url: str, tmp_path: Path) -> None:
    data, report = tmp_path / "prompts.jsonl", tmp_path / "report.json"
    data.write_text("\n".join(json.dumps({"prompt": q["question"]}) for q in QUESTIONS * 4))
    words = [
        *("--backend", f"kind=openai_http,target={url},model=demo"),
        *("--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=4"),
        *("--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}"),
    ]
    command = [str(Path(sys.executable).with_name("guidellm")), "run", *words, "--disable-console"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [benchmark] = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert (len(requests["successful"]), len(requests["errored"])) == (4, 0)
