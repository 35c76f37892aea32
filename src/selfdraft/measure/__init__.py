"""The one way to measure: arms (methods, or peers) take turns on the same prompts, plain decoding among them.

    prompts -> MeasurePlan -> Measurement (run.py)    every arm on every prompt, in an order drawn for each text
                         arms.py                      how one arm runs one text: ours, or a peer of transformers
                         -> Record (records.py)       one text of one arm, a JSON line; a file of them resumes
                              -> Figures (figures.py) sums over prompts; Estimate: a value and its interval
    passes.py: what single passes take, and the bound that follows.   circumstances.py: where it was measured.

Speeds are total tokens over total seconds. Two arms are compared paired: prompts are resampled with both together.

Not measured here is what has no arms and prompts to take turns: passes (models/latency.py) and rounds by their length
(calibrate/tuning.py), a candidate set while a search tries it (calibrate/fit_session.py), plans, and an oracle's rounds
(bench/papers), kernels (benchmarks/*.py), and the one text of `generate --compare`. No published speed-up comes of it.
"""
