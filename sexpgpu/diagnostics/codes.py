"""Every code that a diagnostic may carry: the table behind `explain`, the manual's error pages and the tests.

A code is never given a new meaning. `E-` codes stop the command, `W-` codes do not. The stages of the flow
pick a code here when they build a `Diagnostic`; this module knows nothing else of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """One code: the area it belongs to, what it is called, when it is given, and how to mend its cause."""

    code: str
    area: str
    title: str
    when: str
    fix: str


_READING = (
    (
        "E-READ-001",
        "file cannot be opened",
        "the file is missing, is a folder, or may not be read by this user",
        "check the path and its permissions; the message names a near file of the same folder",
    ),
    (
        "E-READ-002",
        "file is not UTF-8",
        "a byte of the file does not continue a UTF-8 character; the message gives its offset and line",
        "save the file as UTF-8",
    ),
    (
        "E-READ-003",
        "bracket is not closed",
        "a form ends before its opening bracket is closed: at the end of the file, at a bracket in column 0, "
        "which always begins a new top-level form, or at the closing bracket of a form around it",
        "add the missing bracket; the label at the opener is the likeliest place, judged by indentation",
    ),
    (
        "E-READ-004",
        "closing bracket without its opener",
        "a closing bracket closes nothing, or closes an opening bracket of the other kind",
        "remove the bracket, or write the kind that its opener asks for",
    ),
    (
        "E-READ-005",
        "malformed token",
        "a word begins like a number but is none, a keyword has no name, a string has an unknown escape, or "
        "`#;` has nothing to skip",
        "write numbers as `3`, `1_000`, `-0.5` or `6e-4`, keywords as `:rate`, and begin names with another "
        "character than a digit",
    ),
    (
        "E-READ-006",
        "string is not ended",
        "a string has no closing quote before the text ends",
        'add the closing quote; a quote inside a string is written `\\"`',
    ),
    (
        "E-READ-007",
        "block comment is not ended",
        "a `#|` has no `|#`; block comments nest, so each needs its own",
        "add the missing `|#`",
    ),
    (
        "E-READ-008",
        "brackets are nested too deeply",
        "more brackets are open at once than the reader allows",
        "give the inner parts names with `let`, `def` or `defn`",
    ),
)

_NAMES = (
    (
        "E-NAME-001",
        "unknown name",
        "a name is used that no definition, parameter or binding in reach provides",
        "correct the spelling, or define the name",
    ),
    (
        "E-NAME-002",
        "name defined twice",
        "two definitions of one file, or two parameters of one form, share a name, or a measure takes that of a "
        "series which the run itself writes",
        "rename or remove one of the two",
    ),
    (
        "E-NAME-003",
        "unknown variant",
        "`--variant` names a variant that the file does not declare",
        "use one of the variants that the message lists, or add a `defvariant`",
    ),
    (
        "E-NAME-004",
        "override of an unknown constant",
        "`--set` or a `defvariant` names something that is not a `def` of the experiment",
        "correct the name, or define the constant with `def`",
    ),
    (
        "E-NAME-005",
        "unknown code",
        "`explain` is asked for a code that no message carries",
        "copy the code from the message, or look for it in the list that `sexpgpu explain` prints",
    ),
)

_FORMS = (
    (
        "E-FORM-001",
        "malformed form",
        "a form has too few or too many parts, or a part of the wrong kind",
        "write the form as the help line shows it",
    ),
    (
        "E-FORM-002",
        "unknown top-level form",
        "something other than a known top-level form stands at the top of the file",
        "begin it with `def`, `defn`, `defmodel`, `defrun` or another top-level form of the reference",
    ),
    (
        "E-FORM-003",
        "unknown keyword",
        "a form or function is given a keyword that it does not have, or the same one twice",
        "correct the spelling, or remove the keyword",
    ),
    (
        "E-FORM-004",
        "missing keyword or argument",
        "a keyword or argument without a default is left out",
        "add it; the help line shows its name and place",
    ),
)

_CALLS = (
    (
        "E-CALL-001",
        "not a function",
        "the head of a form is a value that cannot be called",
        "call a function, or write a vector with `[ ]` if no call was meant",
    ),
    (
        "E-CALL-002",
        "wrong number of arguments",
        "a function is called with more or fewer arguments than it takes",
        "follow the parameter list that the label shows",
    ),
    (
        "E-CALL-003",
        "error raised by the file",
        "an `error` form was reached; its text is the message",
        "do what the message says: the author of the function wrote it for this case",
    ),
    (
        "E-CALL-004",
        "recursion too deep",
        "a function calls itself more than 256 deep while the file is elaborated",
        "end the recursion with an `if`, or loop with `repeat`, `for` or `scan`",
    ),
    (
        "E-CALL-005",
        "elaboration takes too long",
        "the calls and operations that a file writes out are more than 150,000: a loop of very many rounds, functions "
        "that call one another twice over many levels, or `grad` nested deeply",
        "loop at run time with `scan`, or make the counts smaller",
    ),
)

_TYPES = (
    (
        "E-TYPE-001",
        "dtypes differ",
        "two tensors that must share a dtype do not, or an operation does not take the dtype it is given",
        "write the conversion with `cast`; nothing is promoted silently",
    ),
    (
        "E-TYPE-002",
        "shapes differ",
        "two shapes cannot be brought together: of equal ranks only size 1 stretches, and of unequal ranks "
        "the shorter shape must be the tail of the longer",
        "bring one of them into shape with `rearrange`, `reshape`, `slice` or `broadcast`",
    ),
    (
        "E-TYPE-003",
        "annotation not met",
        "a value does not have the type that its parameter or annotation states",
        "change the value or the annotation",
    ),
    (
        "E-TYPE-004",
        "product axes disagree",
        "one letter of a `product` stands for axes of different sizes, or the notation does not fit an "
        "operand",
        "give the axes different letters, transpose the notation, or correct the shape",
    ),
    (
        "E-TYPE-005",
        "bad axis, index or size",
        "an axis lies outside the rank, an index outside its axis, or a size is negative or does not fit",
        "count axes from 0, or from -1 at the end, and keep indices and sizes in the range that the message "
        "gives",
    ),
    (
        "E-TYPE-006",
        "wrong kind of value",
        "a value of one kind stands where another is needed, such as a tensor where an integer is",
        "pass a value of the kind that the message names",
    ),
    (
        "E-TYPE-007",
        "tensor as a test",
        "the test of an `if` is a tensor, whose value is known only at run time",
        "choose between tensors with `where`; `if` decides while the file is elaborated",
    ),
    (
        "E-TYPE-008",
        "division is not exact",
        "`/` divides two integers that leave a remainder while the file is elaborated",
        "use `quotient` to round down, or make one of the numbers a float",
    ),
    (
        "E-TYPE-009",
        "not differentiable",
        "a gradient is asked of something that has none",
        "keep it out of the differentiated part, or wrap it in `stop-gradient`",
    ),
)

_PARAMETERS_AND_STATE = (
    (
        "E-PARAM-001",
        "parameter path repeated",
        "two parameters of one model call have the same path",
        "give the calls different `:name`s, or bind the parameter once and use it twice to share it",
    ),
    (
        "E-PARAM-002",
        "bad initialiser",
        "an initialiser is neither a number nor an initialiser of the library, or does not fit the shape",
        "use a number, `normal`, `uniform`, `he`, `lecun`, `glorot` or another that fits",
    ),
    (
        "E-PARAM-003",
        "published weights do not fit",
        "a `defweights` names arrays that its file lacks, leaves arrays over, or meets other shapes; all are listed",
        "mend the rules, rearrange with \"o i -> i o\", or leave arrays out with `(none THEIRS)`",
    ),
    (
        "E-STATE-001",
        "state set wrongly",
        "a state is set twice where one value is needed, set to another type, set where effects are not "
        "allowed, or was never declared",
        "declare it once with `state`, and set it once an update, outside run-time loops and `grad`",
    ),
)

_DATA = (
    (
        "E-DATA-001",
        "data not found",
        "no file matches the path or pattern of a data source",
        "correct the path, which is relative to the file that names it, or fetch the data",
    ),
    (
        "E-DATA-002",
        "data unreadable",
        "a data file is damaged, cut short, or not of the kind that its source says",
        "fetch or write the file again; the message gives the place of the fault",
    ),
    (
        "E-DATA-003",
        "data empty or too short",
        "a source or a part of it holds no row, or less than one window or batch",
        "take a larger part, a shorter `:length`, a smaller `:batch`, or more data",
    ),
    (
        "E-DATA-004",
        "token outside the vocabulary",
        "a token id is negative, or is not below the size of the vocabulary; or a word of a table is not among the "
        "categories of its column",
        "raise `:vocabulary`, or prepare the tokens with the tokenizer that the file means; add the word to "
        "`:categories`",
    ),
    (
        "E-DATA-005",
        "unknown field",
        "a metric, model or view asks for a field that its loader does not have, or a source for a column that its "
        "table does not have",
        "use one of the fields that the message lists",
    ),
    (
        "E-DATA-006",
        "row counts differ",
        "the fields or sources that one loader reads together have different numbers of rows",
        "give them the same number of rows, or read them with two loaders",
    ),
    (
        "E-DATA-007",
        "data changed during a run",
        "a file of data was written to, cut, replaced or removed while it was read",
        "put the file back as it was and go on with `--resume latest`, or begin a run with the new data",
    ),
    (
        "E-DATA-008",
        "library not installed",
        "a data source is read by a library that is not installed: tokenizers, tiktoken or pyarrow",
        "install the extra that the message names",
    ),
    (
        "E-DATA-009",
        "not a number in the data",
        "an array holds NaN, or a number beyond what f32 holds, in a row that a batch reads",
        "say `:missing true` where NaN stands for what is missing, or write the data without it",
    ),
)

_RUNNING = (
    (
        "E-RUN-001",
        "non-finite value",
        "a loss, gradient, proposal or state is infinite or not a number; nothing of the step was committed",
        "lower the rate, clip the gradient, or look at the line that the message names; `:on-nonfinite skip` "
        "leaves out such updates",
    ),
    (
        "E-RUN-002",
        "total weight is zero",
        "the weights of a loss or metric sum to zero over a whole step, so it has no mean",
        "check the mask or the weights; a step needs at least one element that counts",
    ),
    (
        "E-RUN-003",
        "index out of range",
        "`gather`, `pick`, `embed`, `table-scan` or `scatter` was given an index outside its axis, or an "
        "integer was divided by zero, while the run was under way; nothing of the step was committed",
        "correct the index; `scatter` takes -1 for nowhere",
    ),
    (
        "E-RUN-004",
        "several runs and no choice",
        "the file declares more than one `defrun`, and the command line names none",
        "add `--run NAME` with one of the names that the message lists",
    ),
    (
        "E-RUN-005",
        "nothing of this name",
        "the command line asks for a run, evaluation or generator that the file does not declare",
        "use one of the names that the message lists",
    ),
    (
        "E-RUN-006",
        "no run in the folder",
        "a command that looks at runs was given a path, or a name under `runs`, where no run has been",
        "give the run's folder; `sexpgpu runs` lists those under `runs`",
    ),
)

_CHECKPOINTS = (
    (
        "E-CKPT-001",
        "no checkpoint",
        "there is no checkpoint at the path, or none yet in the run folder",
        "check the path, or start the run without `--resume`",
    ),
    (
        "E-CKPT-002",
        "checkpoint damaged",
        "a checkpoint lacks a file, or its contents do not match its manifest",
        "resume from the checkpoint before it",
    ),
    (
        "E-CKPT-003",
        "checkpoint of another experiment",
        "the checkpoint was written by an experiment whose elaborated form or data differs; the message "
        "names the first difference",
        "resume with the file, overrides and data that wrote it, or start a new run",
    ),
    (
        "E-CKPT-004",
        "checkpoint of a newer version",
        "the checkpoint has a format that this version of sexpgpu does not know yet",
        "resume with the version that wrote it, or a later one",
    ),
)

_FILES_AND_DEVICES = (
    (
        "E-IO-001",
        "cannot read or write",
        "a file of the run cannot be read or written: the disk is full, or the folder may not be written to",
        "free space, or choose another folder",
    ),
    (
        "E-IO-002",
        "the folder holds a run",
        "`--out` names a folder in which a run has been already",
        "continue that run with `--resume latest`, or name another folder",
    ),
    (
        "E-IO-003",
        "the run is under way",
        "a process is training in the folder already, or another run saves in the same place of S3 since then",
        "follow it with `sexpgpu watch`, or end it before its run is resumed; name another place with `--checkpoints`",
    ),
    (
        "E-IO-004",
        "not a place for this",
        "a run's folder was to lie on S3, or `--checkpoints` names no place there",
        "choose a folder with `--out`, and `s3://BUCKET/PREFIX` with `--checkpoints`",
    ),
    (
        "E-IO-005",
        "S3 needs an extra",
        "an address begins with `s3://`, and the libraries for it are not installed",
        "pip install 'sexpgpu[s3]'",
    ),
    (
        "E-DEV-001",
        "unknown device",
        "`--device` or `SEXPGPU_DEVICE` names a device that does not exist",
        "use `cpu`, `metal` or `cuda`",
    ),
    (
        "E-DEV-002",
        "device cannot be opened",
        "this machine lacks something that the device needs; the message says what, and what can be opened "
        "here",
        "install what is missing, or choose another device; `sexpgpu doctor` shows the whole state",
    ),
    (
        "E-DEV-003",
        "unreadable setting",
        "an environment variable holds something that its setting cannot be",
        "the message names the variable, its value and the form that is read",
    ),
    (
        "E-DEV-004",
        "loop too long to write out",
        "the device writes out the trips of a loop at run time, and there would be too many nodes in one phase",
        "walk fewer places, or use another device, such as `--device cpu`",
    ),
    (
        "E-DEV-005",
        "not on this device",
        "an option asks for what the device does not do: texts of kernels where it has none, times that it cannot take",
        "leave out the option, or use another device",
    ),
    (
        "E-DEV-006",
        "device failed",
        "the system refused a kernel, or work on the GPU ended with an error; the message has its words",
        "this is a fault of the backend or of the machine, not of the experiment: report the whole message with "
        "the output of `sexpgpu doctor`; a checkpoint that was written before it is good",
    ),
)

_MEMORY = (
    (
        "E-MEM-001",
        "plan exceeds the memory",
        "the plan that the device would execute holds more at once than is free, even without stacking and "
        "without cached parameter results; nothing has run yet",
        "use a smaller batch or shape, `recompute`, or a larger device; the message names the largest parts",
    ),
    (
        "E-MEM-002",
        "tensor too large or allocation refused (Metal)",
        "one tensor is larger than the device's largest buffer, which is found before anything is requested, "
        "or Metal refuses an allocation after its idle buffers were released",
        "make the tensor smaller, or run on a device with more memory",
    ),
    (
        "E-MEM-003",
        "allocation refused while training (CUDA)",
        "a microbatch could not allocate, and neither could its one retry with empty caches, or three "
        "microbatches in a row failed at their first try",
        "find what else uses the card, or plan for less with `SEXPGPU_MEMORY`; then `--resume latest`",
    ),
    (
        "E-MEM-004",
        "allocation refused (CPU)",
        "the machine's memory cannot hold what the plan or a step needs",
        "use a smaller batch or a `smoke` variant, or a machine with more memory",
    ),
)

_DATA_PARALLEL = (
    (
        "E-DP-001",
        "bad list of devices",
        "`SEXPGPU_DEVICES` cannot be parsed, names a device twice or one that is not visible, or no GPU is "
        "visible at all; `metal` has one device, `0`",
        "list each visible device once, as in `SEXPGPU_DEVICES=0,1`",
    ),
    (
        "E-DP-002",
        "resume with another layout",
        "the checkpoint was written with other counts of nodes or ranks, or another share of the loader; the "
        "message gives both sides",
        "resume with the nodes and devices that wrote it, or allow the change with `--relayout`",
    ),
    (
        "E-DP-003",
        "microbatches do not divide",
        "the number of GPUs does not divide the global `:microbatches`",
        "choose a number of GPUs that divides `:microbatches`, or change it",
    ),
    (
        "E-DP-004",
        "ranks disagree",
        "at a checkpoint two ranks or nodes hold different parameters, optimizer states or product choices; "
        "that checkpoint was not written",
        "this is a fault of the backend, never of the experiment: report the whole message with "
        "`SEXPGPU_DEVICES`; `--resume latest` goes on from the checkpoint before",
    ),
    (
        "E-DP-005",
        "bad node settings",
        "`SEXPGPU_NODES`, `SEXPGPU_NODE_RANK`, `SEXPGPU_RENDEZVOUS` or `SEXPGPU_NODE_GRADIENTS` has a value "
        "it cannot have, or several nodes are asked of a device other than `cuda`",
        "set the first three on every node, with `SEXPGPU_DEVICE=cuda`; gradients are `f32` or `bf16`",
    ),
    (
        "E-DP-006",
        "nodes differ",
        "a node that arrives at the rendezvous differs from node 0 in node count, GPU count, experiment, "
        "gradient dtype, secret or checkpoint, or its rank is taken; the message gives both sides",
        "start every node with the same files, options, number of GPUs and checkpoint location",
    ),
    (
        "E-DP-007",
        "node absent or lost",
        "a node did not reach the rendezvous within 300 s, or left the run; the others stop too",
        "start every node; after a loss start all of them again with `--resume latest`",
    ),
)

_NEW_FILES = (
    (
        "E-NEW-001",
        "unknown template",
        "`sexpgpu new` is asked for a template that there is not",
        "use one of those that `sexpgpu new --list` shows",
    ),
    (
        "E-NEW-002",
        "no name for a file",
        "the name of a new file is empty, or holds more than letters, digits, `-`, `_` and `.`",
        "use such characters only, and begin with a letter or digit",
    ),
    (
        "E-NEW-003",
        "the file is there already",
        "`sexpgpu new` would write over a file",
        "choose another name, or remove the file",
    ),
)

_LANGUAGE_SERVER = (
    (
        "E-LSP-001",
        "language server not installed",
        "`sexpgpu lsp` is started where the package pygls, which speaks the protocol, is not installed",
        "`pip install 'sexpgpu[lsp]'` into the environment whose `sexpgpu` the editor starts",
    ),
)

_WARNINGS = (
    (
        "W-CALL-001",
        "calls",
        "a `warning` form",
        "a function of the library or of the file warns of the values it was given",
        "read the message; it is the function's author who speaks",
    ),
    (
        "W-CALL-002",
        "calls",
        "operation of one value",
        "`+`, `*`, `minimum` or `maximum` is given one value, which it gives back; another was likely forgotten",
        "add the other value, or write the one alone",
    ),
    (
        "W-NAME-001",
        "names",
        "definition never used",
        "nothing reads a definition, a binding of `let`, or a parameter of a function of the file",
        "remove it, or use it",
    ),
    (
        "W-PARAM-001",
        "parameters and state",
        "parameter out of reach",
        "no loss depends on a parameter, so nothing trains it",
        "use the parameter, remove it, or keep it out of `:over` if it is meant to stay as it is",
    ),
    (
        "W-DATA-001",
        "data",
        "loader field never read",
        "a metric takes a field and never reads it, no metric reads any field of a loader, or a mask of the data, "
        "which is a field of booleans, is taken by no metric of the file",
        "read the field, or leave it out: of the metric, or of the data",
    ),
    (
        "W-DEV-001",
        "files and devices",
        "no kernels for the cpu",
        "the C compiler is missing or fails, so the interpreter runs the program: right, and several times slower",
        "install gcc or clang, name one with `SEXPGPU_CC`, or say `SEXPGPU_CPU=interpreter`",
    ),
    (
        "W-VARIANT-001",
        "names",
        "no `smoke` variant",
        "an experiment too large to try on the CPU declares no `smoke` variant",
        "add `(defvariant smoke …)` with small dimensions, or check it on the GPU with `--steps 3`",
    ),
)


def _codes() -> Iterator[Code]:
    areas = {
        "reading": _READING,
        "names": _NAMES,
        "forms": _FORMS,
        "calls": _CALLS,
        "types": _TYPES,
        "parameters and state": _PARAMETERS_AND_STATE,
        "data": _DATA,
        "running": _RUNNING,
        "checkpoints": _CHECKPOINTS,
        "files and devices": _FILES_AND_DEVICES,
        "memory": _MEMORY,
        "data parallel": _DATA_PARALLEL,
        "new files": _NEW_FILES,
        "language server": _LANGUAGE_SERVER,
    }
    for area, rows in areas.items():
        for code, title, when, fix in rows:
            yield Code(code, area, title, when, fix)
        for code, of, title, when, fix in _WARNINGS:
            if of == area:
                yield Code(code, area, title, when, fix)


CODES: dict[str, Code] = {code.code: code for code in _codes()}
"""Every code by its name, in the order of the manual; never changed after import."""
