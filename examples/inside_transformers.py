"""Inside `model.generate`, where all else stays transformers' own: python examples/inside_transformers.py [MODEL].

MODEL may be a hub id, a folder, a GGUF file or a name of the catalogue; none: the default model.
"""

import sys

from transformers import TextStreamer

import selfdraft

engine = selfdraft.Engine.from_pretrained(sys.argv[1] if len(sys.argv) > 1 else None)
model, tokenizer = engine.model, engine.tokenizer  # any model of transformers will do
text = "One,two,three,four,one,two,three,"
inputs = tokenizer([text], return_tensors="pt", return_token_type_ids=False).to(model.device)
options = {"max_new_tokens": 32, "do_sample": False}

plain = model.generate(**inputs, **options)
decode = selfdraft.decoder(drafter="lookup", streamer=TextStreamer(tokenizer, skip_prompt=True))
drafted = model.generate(**inputs, **options, custom_generate=decode)
print("the same tokens:", bool((plain == drafted).all()))
