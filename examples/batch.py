"""Many prompts from a file, eight at a time: python examples/batch.py prompts.txt answers.jsonl [MODEL].

One prompt a line in, one JSON object a line out. A prompt's text does not depend on the others of its batch.
"""

import json
import sys
from pathlib import Path

import selfdraft

BATCH = 8

if len(sys.argv) not in (3, 4):
    print("usage: python examples/batch.py prompts.txt answers.jsonl [MODEL]", file=sys.stderr)
    sys.exit(2)
source, target, *model = sys.argv[1:]
engine = selfdraft.Engine.from_pretrained(model[0] if model else None)
has_template = bool(getattr(engine.tokenizer, "chat_template", None))
prompts = [line for line in Path(source).read_text(encoding="utf-8").splitlines() if line.strip()]

with Path(target).open("w", encoding="utf-8") as answers:
    for first in range(0, len(prompts), BATCH):
        batch = prompts[first : first + BATCH]
        asked = [[{"role": "user", "content": prompt}] for prompt in batch] if has_template else batch
        for prompt, generation in zip(batch, engine.generate(asked, max_new_tokens=64), strict=True):
            line = {"prompt": prompt, "answer": generation.text, "finish_reason": generation.finish_reason}
            print(json.dumps(line, ensure_ascii=False), file=answers)
        print(f"{min(first + BATCH, len(prompts))} of {len(prompts)}")
