"""Inside `model.generate`, where all else stays transformers' own: python examples/inside_transformers.py MODEL."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer, TextStreamer

import selfdraft

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
inputs = tokenizer(["One,two,three,four,one,two,three,"], return_tensors="pt", return_token_type_ids=False)
options = {"max_new_tokens": 32, "do_sample": False}

plain = model.generate(**inputs, **options)
decode = selfdraft.decoder(drafter="lookup", streamer=TextStreamer(tokenizer, skip_prompt=True))
drafted = model.generate(**inputs, **options, custom_generate=decode)
print("the same tokens:", bool((plain == drafted).all()))
