"""The guided tour: the code in the order that data flows through it. Ten minutes; nothing here runs.

Take the smallest example, `examples/tiny-sgd.sx`, and follow it from text to trained parameters. Every
dotted name below can be imported.

**1. Text to forms.** `sexpgpu.source.Source` is a file's text with its line index, `sexpgpu.source.Span` a
stretch of it; every later object that stands for something in the file keeps a span.
`sexpgpu.syntax.reader` turns the text into the few kinds of `sexpgpu.syntax.forms`: lists, vectors,
symbols, keywords, literals. It recovers from mistakes and goes on, so that one run reports them all.
`sexpgpu.syntax.written` keeps what forms drop, comments and line breaks, for `sexpgpu.syntax.format`.

**2. What is wrong is data.** `sexpgpu.diagnostics.diagnostic.Diagnostic` carries a code, a message,
labelled spans and help; `sexpgpu.diagnostics.codes.CODES` is the table of codes,
`sexpgpu.diagnostics.pages.page` the manual page behind each, `sexpgpu.diagnostics.render.render` draws one for
people, editors or programs. Stages collect diagnostics, and raise
`sexpgpu.diagnostics.diagnostic.DiagnosticError` at the end. In the language a
`sexpgpu.lang.collector.Collector` runs what is independent and leaves out what only follows from a mistake.

**3. Forms to values.** `sexpgpu.lang.load.load_experiment` is the front door of the language. It enters every
top-level form in a table (`sexpgpu.lang.toplevel.FORMS`), puts variants and `--set` over the constants, and
evaluates what is needed. The evaluator is `sexpgpu.lang.elaborator.Elaborator`: the forms of expressions are
functions in `sexpgpu.lang.forms.EXPRESSIONS` (binding and choice in `sexpgpu.lang.special`, parameters and
effects in `sexpgpu.lang.storage`, bodies of their own in `sexpgpu.lang.loops` and `sexpgpu.lang.recompute`),
operations in `sexpgpu.lang.builtins.BUILTINS`; all take the elaborator first. `sexpgpu.lang.labels` and
`sexpgpu.lang.bindings` find what a mistake should point at. Numbers fold at once; where a tensor is among the
operands, `sexpgpu.lang.arithmetic.arithmetic` records a node instead. Numbers that depend on `step` go a
third way, into `sexpgpu.lang.trace.Schedule`. The library, layers to optimizers, is written in the language
and lies in `sexpgpu/std`. What the manual says of an operation stands where it is defined, and
`sexpgpu.lang.manual.pages` collects it.

**4. Values to graphs.** While a metric is elaborated, a `sexpgpu.lang.trace.Trace` records: nodes through a
`sexpgpu.ir.builder.Builder`, parameters and states in the `sexpgpu.lang.trace.World` that all traces of a
file share. `sexpgpu.lang.tracing.trace_objective` does it for losses and evaluations,
`sexpgpu.lang.tracing.RuleTracer` for optimizers, `sexpgpu.lang.tracing.trace_generator` for generators,
`sexpgpu.lang.inner.call_generator` for those that a metric calls.
A call like one before it is not evaluated again: `sexpgpu.lang.replay` replays it from the log of its trace.
What comes out of all this is a `sexpgpu.lang.experiment.Experiment`: data only.

**5. Graphs.** `sexpgpu.ir.graph.Graph` is a single-assignment list of nodes over
`sexpgpu.ir.types.TensorType`s. An operation is one `sexpgpu.ir.opdef.OpDef`: type rule, NumPy meaning,
gradient, stacking rule, samples for the tests, all in one place under `sexpgpu.ir.ops`. Read
`sexpgpu.ir.ops.functions` first. `sexpgpu.ir.text` prints graphs as S-expressions and reads them back,
`sexpgpu.ir.verify.verify` checks them, `sexpgpu.ir.evaluate.evaluate` runs one, node by node: the plainest
executor there is.

**6. Passes.** Functions from graph to graph. `sexpgpu.transform.raising.raise_composites` finds attention,
norms and losses in plain operations; `sexpgpu.ir.stacking.stack_into` runs k microbatches as one;
`sexpgpu.transform.autodiff.differentiate` adds the backward nodes; `sexpgpu.transform.loops.prune_loops` and
`sexpgpu.transform.simplify.simplify` clean up. Their order is in `sexpgpu.transform.passes`.

**7. A program.** `sexpgpu.train.phases.assemble` puts the pieces together as a
`sexpgpu.ir.program.Program`: named slots, named phases that read and write them. Its docstring lists the
phases. `sexpgpu ir examples/tiny-sgd.sx` prints the whole of it, and is the best picture of what a step is.

**8. A plan.** `sexpgpu.plan.memory.plan_memory` plans each phase: `sexpgpu.plan.regions.form_regions` decides what a
device does as one piece of work, `sexpgpu.plan.schedule` orders it, `sexpgpu.plan.layout` and `sexpgpu.plan.arena` give
every value that is left a place. It adds up the peak; `sexpgpu.plan.memory.admit` refuses what does not fit.

**9. A device.** `sexpgpu.backend.protocol.Device` plans and opens, `sexpgpu.backend.protocol.Session` runs
calls and holds the slots; the rest of the package knows no more of devices than these two.
`sexpgpu.backend.registry.open_device` finds one by name. The cpu is `sexpgpu.backend.cpu.device.CpuDevice`
and `sexpgpu.backend.cpu.session.CpuSession`: views made once, then a loop over NumPy calls and over stretches of C,
which `sexpgpu.backend.cpu.native.lowering.Native` makes of the steps: `sexpgpu.backend.cpu.native.groups.longest_group`
puts them together, `sexpgpu.backend.cpu.native.printer.print_group` prints a kernel. On GPUs
`sexpgpu.backend.kernels.lowering.Lowering` turns a phase's steps into launches, and
`sexpgpu.backend.kernels.printer.Printer` prints their texts in a dialect. An NVIDIA GPU is
`sexpgpu.backend.cuda.device.CudaDevice`: `sexpgpu.backend.cuda.lowering.lower` adds calls of libraries, and
`sexpgpu.backend.cuda.session.CudaSession` captures and replays it all. An Apple GPU is
`sexpgpu.backend.metal.device.MetalDevice`: `sexpgpu.backend.metal.session.MetalSession` binds launches to buffers of
`sexpgpu.backend.metal.pool.Pool`, and `sexpgpu.backend.metal.driver.Driver` alone speaks to Metal.

**10. Data.** `sexpgpu.data.dataset.open_dataset` opens what `defdata` names, `sexpgpu.data.views` cuts it
into rows or windows, `sexpgpu.data.packed` documents into rows, and `sexpgpu.data.loader.Loader` answers one
question: which rows are batch number m? Streams, mixtures and zips, in `sexpgpu.data.mixture`, answer the same one.
Files are opened in `sexpgpu.data.files`; in `sexpgpu.data.text` texts become ids, with tokenizers of others in a
process of their own, `sexpgpu.data.tokenizer`. `sexpgpu.data.prefetch.Prefetcher` asks it ahead of time, on a thread.

**11. The loop.** `sexpgpu.train.loop.Training` is the run: steps, and what is due between them. One step is
`sexpgpu.train.loop.Stepper`: calls of phases, folded by `sexpgpu.train.folds`.
`sexpgpu.train.blame.first_non_finite` finds the form that a failed step is to blame on.
`sexpgpu.train.lanes` is the state that is not folded, `sexpgpu.train.inner` the generators of a metric.
`sexpgpu.train.stopping.EarlyStop` ends a run whose series gets no better.
`sexpgpu.train.evaluation.run_evaluation` and `sexpgpu.train.generation.run_generator` do the rest;
`sexpgpu.train.keys.stream_key` is where randomness begins.

**12. What stays.** `sexpgpu.train.metrics.MetricsWriter` appends numbers, `sexpgpu.train.status.StatusFile`
says where the run stands, `sexpgpu.train.checkpoint.save` writes a step whole or not at all, to a folder or to S3
(`sexpgpu.train.store`) and on a thread of its own (`sexpgpu.train.writer.CheckpointWriter`),
`sexpgpu.train.identity.experiment_digest` decides what is the same experiment. `sexpgpu.look.record.read_run` reads
it all back, and `sexpgpu.look.page.report` makes a page of it; `sexpgpu.look.nodes.first_parting` finds the node at
which two runs part.

**13. The command line.** `sexpgpu.cli.main.main` imports one module for each command, and only that one:
`sexpgpu.cli.check` loads no device, `sexpgpu.cli.run` puts everything above together in one page.
`sexpgpu.cli.verify` tells how far a device lies from the interpreter: `sexpgpu.train.verification` opens the phases of
a file with their inner values as results, `sexpgpu.train.samples` runs the samples of all operations,
`sexpgpu.train.differences` has the bounds.

**14. The editor.** `sexpgpu lsp` answers an editor's questions. `sexpgpu.lsp.names.resolve` finds what each name
refers to without evaluating anything, `sexpgpu.lsp.checking.check_plain` elaborates an unsaved text with an
`sexpgpu.lsp.checking.Observer` that keeps what forms evaluate to, `sexpgpu.lsp.analysis.Project` answers from both.
`sexpgpu.lsp.server` alone knows the protocol.

Layers import downwards only, a test keeps that. Where to begin with a change: a new function of
elements is one entry in `sexpgpu.ir.ops.functions`, any other operation one in `sexpgpu.ir.ops` and one in
`sexpgpu.lang.builtins`; a new layer is a few lines in `sexpgpu/std/layers.sx`; a new error is a row of
`sexpgpu.diagnostics.codes.CODES` and a page.
"""
