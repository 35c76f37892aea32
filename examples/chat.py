"""A chat in the terminal, the answer printed as it comes: python examples/chat.py [MODEL]. An empty line ends it."""

import sys

import selfdraft

engine = selfdraft.Engine.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else None, drafter="lookup")
has_template = bool(getattr(engine.tokenizer, "chat_template", None))
messages: list[dict[str, str]] = []

while True:
    try:
        words = input("you> ").strip()
    except EOFError:
        break
    if not words:
        break
    messages.append({"role": "user", "content": words})
    # A model without a chat template is not made for chatting: it continues what was said last.
    prompt = messages if has_template else words
    stream = engine.stream(prompt, max_new_tokens=256, temperature=0.7, top_p=0.9, seed=None)  # None: another each time
    for chunk in stream:
        print(chunk.text, end="", flush=True)
    generation = stream.generation
    messages.append({"role": "assistant", "content": generation.text})
    print(f"\n[{generation.stats.num_tokens} tokens, {generation.stats.tokens_per_second:.0f} a second]")
