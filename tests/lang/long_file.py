"""A long experiment of realistic parts, for tests and measurements of how a check grows with its file."""

from __future__ import annotations

from random import Random

_BLOCK = """
(defn attend-{i} (x)
  (let [qkv     (linear x (* 3 width) :bias {bias} :name qkv)
        [q k v] (unstack (rearrange "b t (n h d) -> n b h t d" qkv :n 3 :h heads))
        y       (attention q k v :causal true)]
    (linear (rearrange "b h t d -> b t (h d)" y) width :bias {bias} :name out)))

(defn mlp-{i} (x)
  (let [hidden (linear x (* {wide} width) :bias {bias} :name up)
        gate   (sigmoid (linear x (* {wide} width) :bias {bias} :name gate))]
    (dropout (linear (* ({act} hidden) gate) width :bias {bias} :name down) {drop})))

;; block {i}: pre-norm, attention and a gated feed-forward part
(defn block-{i} (x)
  (let [x (+ x (attend-{i} ({norm} x :name norm1) :name attn))]
    (+ x (mlp-{i} ({norm} x :name norm2) :name mlp))))

(defmodel lm-{i} ((tokens (i32 _ ?t)))
  (let [table (param table (f32 256 width) (normal 0.02))
        place (param place (f32 seq width) (normal 0.02))
        x     (+ (embed table tokens) (slice place 0 ?t))
        x     (repeat [i layers] [x x] (block-{i} x :name (block i)))]
    (product "b t w, v w -> b t v" ({norm} x :name norm) table)))

(defmetric nll-{i} (tokens targets)
  (let [logits (lm-{i} tokens)
        hit    (cast (= (argmax logits :axis -1) targets) f32)]
    (measure accuracy-{i} (mean hit))
    (mean (cross-entropy logits targets :smoothing {drop}))))

(defmetric bits-{i} (tokens targets)
  (/ (mean (cross-entropy (lm-{i} tokens) targets)) (log 2.0)))

(defeval validation-{i} :loader val :batches 2 nll-{i} bits-{i})
(defupdate learn-{i} :loader train :loss nll-{i} :over "lm-{i}.*" :clip 1.0
  :optimizer (fn (path p)
    (if (= (rank p) 2) (adamw :rate (warmup-cosine {rate} :warmup 10 :total steps) :decay 0.1)
        (adamw :rate (linear-schedule {rate} 0.0 :total steps) :betas [0.9 0.99]))))
(def scale-{i} (/ {wide}.0 (sqrt (* 2 layers))))
(defdiagnostic ratio-{i} (p g new) :over "lm-{i}.*.w" :every 10 (* scale-{i} (/ (norm (- new p)) (norm p))))
"""


def long_file(num_lines: int) -> str:
    """A file of at least `num_lines` lines: as many small language models as that takes, trained side by side."""
    random = Random(num_lines)
    parts = ['(defdata corpus (text "words.txt" :by bytes))\n',
             "(def width 16) (def heads 2) (def seq 16) (def layers 2) (def steps 100)\n",
             "(defloader train (windows (part corpus 0.0 0.8) :length seq) :batch 2 :shuffle true)\n",
             "(defloader val   (windows (part corpus 0.8 1.0) :length seq) :batch 2)\n"]  # fmt: skip
    count = 0
    while sum(part.count("\n") for part in parts) < num_lines - 4:
        parts.append(
            _BLOCK.format(
                i=count, bias=random.choice(("true", "false")), wide=random.randrange(2, 5), rate="1e-3",
                act=random.choice(("gelu", "silu", "relu")), norm=random.choice(("layer-norm", "rms-norm")),
                drop=random.choice((0.1, 0.2)),
            )
        )  # fmt: skip
        count += 1
    names = [" ".join(f"{word}-{i}" for i in range(count)) for word in ("learn", "ratio", "validation")]
    run = "(defrun all :updates [{}] :steps steps :seed 0\n  :diagnose [{}]\n  :evaluate (every 10 [{}]))\n"
    return "".join(parts) + run.format(*names)
