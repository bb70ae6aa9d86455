#include "configs/job_keys.h"

namespace weft::configs {
namespace {

constexpr JobKey kFile[] = {
    {.path = "format",
     .meaning = "The version of the job file's form. This weft reads form 1.",
     .example = "format: 1",
     .otherwise = "1",
     .takes = "`1`"},
    {.path = "model",
     .meaning = "The ONNX file. Paths are relative to the folder of the job file. A job that serves may name "
                "`job:3` instead: what job 3 of the same broker has learnt.",
     .example = "model: model.onnx"},
    {.path = "init",
     .meaning =
         "The file from which the model gets its first weights: of safetensors or GGUF, or the index "
         "`model.safetensors.index.json` of several that lie beside it. A tensor goes to the initializer of "
         "its name ([MODELS.md](MODELS.md#weights-from-another-file)). What has no place, and what is "
         "trained "
         "and has no tensor, is an error that names it.",
     .example = "init: w.safetensors",
     .otherwise_words = "the weights of the model's own file",
     .takes = "the file, or a map with its `path`"},
    {.path = "init.path", .meaning = "The file.", .example = "init: {path: w.safetensors, partial: true}"},
    {.path = "init.rename",
     .meaning =
         "A map from regular expressions (ECMAScript) to what takes their place: by each in turn, the name "
         "of a tensor becomes that of an initializer. `$1` is the first group.",
     .example = "init: {path: w.safetensors, rename: {\"^transformer\\\\.\": \"\"}}",
     .otherwise_words = "names are the same",
     .takes = "a map from patterns to texts"},
    {.path = "init.transpose",
     .meaning =
         "A list of patterns over initializers: matrices that the file has transposed. One that is not "
         "square and fits only transposed need not be named.",
     .example = "init: {path: w.safetensors, transpose: [\"*.c_attn.weight\"]}",
     .otherwise_words = "only those that fit no other way"},
    {.path = "init.ignore",
     .meaning = "A list of patterns over tensors, as the file names them, that are not taken.",
     .example = "init: {path: w.safetensors, ignore: [\"*.attn.bias\"]}",
     .otherwise_words = "all are taken"},
    {.path = "init.keep",
     .meaning = "A list of patterns over initializers that keep the values of the model's own file.",
     .example = "init: {path: w.safetensors, keep: [\"head.*\"]}",
     .otherwise_words = "all that are weights need a tensor"},
    {.path = "init.partial",
     .meaning = "With `true`, tensors without a place and weights without a tensor are no error.",
     .example = "init: {path: w.safetensors, partial: true}",
     .otherwise = "false"},
    {.path = "task",
     .meaning = "What is done with the model. `serve` answers requests until it is stopped.",
     .example = "task: train"},
    {.path = "seed",
     .meaning = "The seed of the order of samples, of Dropout and of random ops.",
     .example = "seed: 7",
     .otherwise = "0"},
};

constexpr JobKey kInputs[] = {
    {.path = "inputs",
     .meaning =
         "A map from each input of the graph to the data column that feeds it. `idx` and `images` have the "
         "columns `image` and `label`; `text` has `tokens` and `targets`, `jsonl` also `attention_mask`, "
         "`positions` and `causal_mask`; `npz` has the names of its arrays; of `npy` and `csv` the job names "
         "them.",
     .example = "inputs: {x: image}"},
    {.path = "inputs.INPUT.value",
     .meaning = "In place of a column: a number, or lists of numbers, that the input is for every sample.",
     .example = "inputs: {x: image, sr: {value: 16000}}",
     .otherwise_words = "the input is fed by a column",
     .takes = "a number, or lists of numbers of one shape"},
};

constexpr JobKey kLoss[] = {
    {.path = "loss",
     .meaning = "The loss, or a list of losses whose weighted sum is trained.",
     .example = "loss: [{type: mse, output: y, target: y}, {type: l1, output: z, target: z, weight: 0.1}]"},
    {.path = "loss.type",
     .meaning = "`output` means that the model computes its loss itself.",
     .example = "loss: {type: bce_with_logits, output: logits, target: label}"},
    {.path = "loss.logits",
     .meaning = "`cross_entropy`: the value of the graph that holds the logits.",
     .example = "loss: {type: cross_entropy, logits: logits, labels: label}"},
    {.path = "loss.labels",
     .meaning = "`cross_entropy`: the data column of the labels.",
     .example = "loss: {type: cross_entropy, logits: logits, labels: label}"},
    {.path = "loss.output",
     .meaning = "`mse`, `l1`, `bce_with_logits`: the value of the graph that is compared.",
     .example = "loss: {type: mse, output: y, target: y}"},
    {.path = "loss.target",
     .meaning = "`mse`, `l1`, `bce_with_logits`: the data column that it is compared with.",
     .example = "loss: {type: mse, output: y, target: y}"},
    {.path = "loss.name",
     .meaning = "`output`: the value of the graph that is the loss.",
     .example = "loss: {type: output, name: loss}"},
    {.path = "loss.axis",
     .meaning = "`cross_entropy`: the axis of classes, where the shapes leave a choice; -1 is the last.",
     .example = "loss: {type: cross_entropy, logits: logits, labels: label, axis: -1}",
     .otherwise_words = "the axis that the labels lack"},
    {.path = "loss.ignore_index",
     .meaning = "`cross_entropy`: labels with this value do not count.",
     .example = "loss: {type: cross_entropy, logits: logits, labels: label, ignore_index: 0}",
     .otherwise = "-100"},
    {.path = "loss.class_weights",
     .meaning = "`cross_entropy`: a list with one weight for each class.",
     .example = "loss: {type: cross_entropy, logits: logits, labels: label, class_weights: [1, 2.5]}",
     .otherwise_words = "1 for each class"},
    {.path = "loss.label_smoothing",
     .meaning = "`cross_entropy`: the part of each label that is spread over all classes.",
     .example = "loss: {type: cross_entropy, logits: logits, labels: label, label_smoothing: 0.1}",
     .otherwise = "0"},
    {.path = "loss.sample_weights",
     .meaning = "The data column that weighs each sample, or each label. `output` has none.",
     .example = "loss: {type: mse, output: y, target: y, sample_weights: w}",
     .otherwise_words = "1 for each sample"},
    {.path = "loss.weight",
     .meaning = "The weight of this loss in the sum of a list.",
     .example = "loss: {type: mse, output: y, target: y, weight: 0.5}",
     .otherwise = "1"},
};

constexpr JobKey kSteps[] = {
    {.path = "batch_size", .meaning = "How many samples a step takes.", .example = "batch_size: 64"},
    {.path = "microbatch_size",
     .meaning =
         "How many samples flow through the stages at once. It divides `batch_size`; gradients are summed "
         "over the batch. With `auto` the planner chooses; BatchNorm and the bits of the result depend on "
         "the choice.",
     .example = "microbatch_size: 16",
     .otherwise_words = "`batch_size`",
     .takes = "a whole number that divides `batch_size`, or `auto`"},
    {.path = "steps",
     .meaning = "How long to train, in steps. One of `steps` and `epochs` is required.",
     .example = "steps: 1000",
     .otherwise_words = "`epochs` says it"},
    {.path = "epochs",
     .meaning = "How long to train, in passes over the data. A last, incomplete batch is left out.",
     .example = "epochs: 3",
     .otherwise_words = "`steps` says it"},
    {.path = "gradient_ranges",
     .meaning =
         "In how many equal ranges the gradients of a step's microbatches are added up. With 2 they are "
         "added as two replicas with half of the microbatches each would add them.",
     .example = "gradient_ranges: 1",
     .otherwise = "1"},
    {.path = "evaluate_every",
     .meaning =
         "After how many steps the model is evaluated. It needs something to evaluate on. The end of a run "
         "is always evaluated, if there is.",
     .example =
         "data: {train: {type: npz, path: a.npz}, test: {type: npz, path: b.npz}}\nevaluate_every: 500",
     .otherwise = "0",
     .otherwise_words = "`0`: at the end alone"},
    {.path = "checkpoint",
     .meaning = "When checkpoints are made: exactly one of `every` and `steps`.",
     .example = "checkpoint: {every: 60s}",
     .otherwise_words = "no periodic checkpoints"},
    {.path = "checkpoint.every",
     .meaning = "A time of at most 30 days, as 60s, 5m or 1h.",
     .example = "checkpoint: {every: 60s}",
     .otherwise_words = "`checkpoint.steps` says it"},
    {.path = "checkpoint.steps",
     .meaning = "A number of steps.",
     .example = "checkpoint: {steps: 100}",
     .otherwise_words = "`checkpoint.every` says it"},
    {.path = "on_divergence",
     .meaning =
         "What happens at a loss or a gradient that is not finite: `stop` ends the run, `skip` leaves that "
         "step out ([MODELS.md](MODELS.md#numbers-that-are-not-finite)).",
     .example = "on_divergence: skip",
     .otherwise = "stop"},
};

constexpr JobKey kOptimizer[] = {
    {.path = "train",
     .meaning =
         "A list of patterns of names. One that names a constant trains it beside the rest; a list that "
         "names a parameter names all that is trained ([MODELS.md](MODELS.md#what-is-trained)).",
     .example = "train: [\"logit_scale\"]",
     .otherwise_words = "every parameter"},
    {.path = "freeze",
     .meaning = "A list of patterns of names that are not trained.",
     .example = "freeze: [\"*.embedding.*\", \"mask\"]",
     .otherwise_words = "nothing is frozen"},
    {.path = "optimizer",
     .meaning = "The rule by which a step changes the parameters; as PyTorch's of the same names.",
     .example = "optimizer: {type: adamw, learning_rate: 1e-3}"},
    {.path = "optimizer.type", .meaning = "Which rule.", .example = "optimizer: {type: adam}"},
    {.path = "optimizer.learning_rate",
     .meaning = "The learning rate, before `schedule`.",
     .example = "optimizer: {type: adamw, learning_rate: 3e-4}",
     .otherwise = "1e-3",
     .otherwise_words = "`1e-3`; with `sgd` it is required"},
    {.path = "optimizer.weight_decay",
     .meaning = "The weight decay: decoupled with `adamw`, added to the gradient otherwise.",
     .example = "optimizer: {type: adamw, weight_decay: 0.1}",
     .otherwise = "0.01",
     .otherwise_words = "`0.01` with `adamw`, else `0`"},
    {.path = "optimizer.momentum",
     .meaning = "`sgd`: the momentum.",
     .example = "optimizer: {type: sgd, learning_rate: 0.1, momentum: 0.9}",
     .otherwise = "0"},
    {.path = "optimizer.dampening",
     .meaning = "`sgd`: the part of the gradient that the momentum leaves out.",
     .example = "optimizer: {type: sgd, learning_rate: 0.1, momentum: 0.9, dampening: 0.1}",
     .otherwise = "0"},
    {.path = "optimizer.nesterov",
     .meaning = "`sgd`: Nesterov's momentum. It needs a momentum, and no dampening.",
     .example = "optimizer: {type: sgd, learning_rate: 0.1, momentum: 0.9, nesterov: true}",
     .otherwise = "false"},
    {.path = "optimizer.betas",
     .meaning = "`adam`, `adamw`: how slowly the two running means forget, two numbers from 0 to below 1.",
     .example = "optimizer: {type: adamw, betas: [0.9, 0.99]}",
     .otherwise = "[0.9, 0.999]"},
    {.path = "optimizer.epsilon",
     .meaning = "`adam`, `adamw`: what is added to the denominator.",
     .example = "optimizer: {type: adamw, epsilon: 1e-6}",
     .otherwise = "1e-8"},
    {.path = "optimizer.slots",
     .meaning =
         "How what the rule keeps beside each parameter is kept. `int8` takes a quarter of the memory and "
         "is another arithmetic, whose bits are its own "
         "([MODELS.md](MODELS.md#optimizer-slots-in-eight-bits)).",
     .example = "optimizer: {type: adamw, slots: int8}",
     .otherwise = "float32"},
    {.path = "optimizer.groups",
     .meaning =
         "A list of parameter groups with settings of their own. The first group that names a parameter "
         "holds; a pattern that names nothing that is trained is an error.",
     .example = "optimizer: {type: adamw, groups: [{parameters: [\"*.bias\"], weight_decay: 0}]}",
     .otherwise_words = "no groups"},
    {.path = "optimizer.groups[].parameters",
     .meaning = "The patterns of the group's names.",
     .example = "optimizer: {type: adamw, groups: [{parameters: [\"*.bias\", \"*norm*\"]}]}"},
    {.path = "optimizer.groups[].weight_decay",
     .meaning = "The group's weight decay.",
     .example = "optimizer: {type: adamw, groups: [{parameters: [\"*.bias\"], weight_decay: 0}]}",
     .otherwise_words = "the optimizer's"},
    {.path = "optimizer.groups[].learning_rate_factor",
     .meaning = "What the group's learning rate is multiplied by.",
     .example = "optimizer: {type: adamw, groups: [{parameters: [\"b*\"], learning_rate_factor: 0.1}]}",
     .otherwise_words = "`1`"},
    {.path = "schedule",
     .meaning = "How the learning rate changes from step to step.",
     .example = "schedule: {type: cosine, warmup_steps: 100, final: 0.1}",
     .otherwise_words = "a constant learning rate"},
    {.path = "schedule.type",
     .meaning = "The form of the curve after the warm-up.",
     .example = "schedule: {type: linear}"},
    {.path = "schedule.warmup_steps",
     .meaning = "For how many steps the learning rate rises to its value.",
     .example = "schedule: {type: constant, warmup_steps: 100}",
     .otherwise = "0"},
    {.path = "schedule.final",
     .meaning = "`linear`, `cosine`: which part of the learning rate is left at the last step.",
     .example = "schedule: {type: cosine, final: 0.1}",
     .otherwise = "0"},
    {.path = "clip_norm",
     .meaning =
         "The norm to which the whole gradient is clipped. On many machines it costs a round trip a step.",
     .example = "clip_norm: 1.0",
     .otherwise_words = "no clipping"},
};

constexpr JobKey kMachines[] = {
    {.path = "placement",
     .meaning = "Which peers get what. `weft local` looks at none of it.",
     .example = "placement: {stages: 4}",
     .otherwise_words = "the planner decides"},
    {.path = "placement.stages",
     .meaning =
         "In how many stages the model is cut, as a number or `auto`. A `placement` that says nothing else "
         "has to say it.",
     .example = "placement: {stages: 4}",
     .otherwise_words = "`auto`",
     .takes = "a whole number from 1 to 4096, or `auto`"},
    {.path = "placement.equal_bits",
     .meaning =
         "Whether all peers must compute the same bits. `require` waits for peers of one kind; `prefer` "
         "takes them if that costs at most a tenth of the speed; `ignore` takes the fastest plan.",
     .example = "placement: {equal_bits: require}",
     .otherwise = "prefer"},
    {.path = "placement.strategy",
     .meaning =
         "How the planner searches: `auto`, `op-fence`, `equal-ops`, `equal-compute`, `equal-memory` or "
         "`equal-ops-joining` ([planning](design/planning.md#how-a-plan-is-found)).",
     .example = "placement: {strategy: op-fence}",
     .otherwise = "auto"},
    {.path = "placement.exclude",
     .meaning = "A list of peers, by name, that get no part of the job.",
     .example = "placement: {exclude: [attic, lab-2]}",
     .otherwise_words = "nobody is left out"},
    {.path = "placement.pin",
     .meaning = "A list of ops that stay on a peer that you name.",
     .example = "placement: {pin: [{ops: inputs, peer: mine}, {ops: labels, peer: mine}]}",
     .otherwise_words = "nothing is pinned"},
    {.path = "placement.pin[].ops",
     .meaning =
         "An op's name, the beginning of some names, `inputs` (what reads the model's inputs) or `labels` "
         "(what reads the labels and makes the loss).",
     .example = "placement: {pin: [{ops: inputs, peer: mine}]}"},
    {.path = "placement.pin[].peer",
     .meaning = "The name of the peer.",
     .example = "placement: {pin: [{ops: inputs, peer: mine}]}"},
    {.path = "placement.owner",
     .meaning =
         "The largest share of the parameters that the machines of one owner may hold, also when they take "
         "over from others (`weft join --owner`).",
     .example = "placement: {owner: 0.5}",
     .otherwise = "1"},
    {.path = "precision",
     .meaning = "To what the operands of matrix products and convolutions are rounded, on devices that can "
                "([MODELS.md](MODELS.md#precision)).",
     .example = "precision: bf16",
     .otherwise = "fp32"},
    {.path = "compression",
     .meaning = "How tensors that cross slow links are compressed "
                "([MODELS.md](MODELS.md#compression-of-links)).",
     .example = "compression: {policy: auto}",
     .otherwise_words = "nothing is compressed"},
    {.path = "compression.policy",
     .meaning = "Who chooses the codec of a link.",
     .example = "compression: {policy: none}"},
    {.path = "compression.codec",
     .meaning = "`uniform`: the codec of every link, as `fp16`, `int8`, `int4` or `topk:0.01:fp16`.",
     .example = "compression: {policy: uniform, codec: int8}",
     .otherwise_words = "TopK of `ratio` and `values`"},
    {.path = "compression.ratio",
     .meaning = "Dense bytes through sent bytes: of all links (`uniform`), or of the slowest (`adatopk`).",
     .example = "compression: {policy: adatopk, ratio: 50}",
     .otherwise = "100"},
    {.path = "compression.values",
     .meaning = "How the numbers that TopK keeps are written.",
     .example = "compression: {policy: uniform, ratio: 20, values: int8}",
     .otherwise = "fp16"},
};

constexpr JobKey kServe[] = {
    {.path = "serve",
     .meaning = "How the model is served, with `task: serve`.",
     .example = "serve: {name: my-model}",
     .task = Task::Serve},
    {.path = "serve.name",
     .meaning = "The name of the model in requests.",
     .example = "serve: {name: my-model}",
     .task = Task::Serve},
    {.path = "serve.tokenizer",
     .meaning = "The tokenizer.json.",
     .example = "serve: {name: my-model, tokenizer: tokenizer.json}",
     .otherwise_words = "the one beside the model, or bytes for a model of 256 tokens",
     .task = Task::Serve},
    {.path = "serve.chat_template",
     .meaning = "How a conversation becomes a prompt: `chatml`, `llama3` or `plain`.",
     .example = "serve: {name: my-model, chat_template: chatml}",
     .otherwise_words = "what tokenizer_config.json beside the tokenizer says",
     .takes = "`chatml`, `llama3` or `plain`",
     .task = Task::Serve},
    {.path = "serve.context",
     .meaning = "How many positions a sequence has, where the file leaves that open. With 0 they are 1024.",
     .example = "serve: {name: my-model, context: 2048}",
     .otherwise = "0",
     .task = Task::Serve},
    {.path = "serve.sequences_max",
     .meaning = "How many sequences have caches at once. Memory may be there for fewer.",
     .example = "serve: {name: my-model, sequences_max: 16}",
     .otherwise = "64",
     .task = Task::Serve},
    {.path = "serve.rows_max",
     .meaning = "How many positions go round the stages together, of all sequences.",
     .example = "serve: {name: my-model, rows_max: 32}",
     .otherwise = "64",
     .task = Task::Serve},
    {.path = "serve.objective",
     .meaning =
         "What the planner looks for: the least time of a token of one sequence, or the most tokens a second "
         "of many.",
     .example = "serve: {name: my-model, objective: throughput}",
     .otherwise = "latency",
     .task = Task::Serve},
    {.path = "serve.draft",
     .meaning =
         "Who guesses tokens ahead, so that several of a text are computed at once; the text is the same "
         "whoever guesses. `ngram` looks for repetition in the text. The name of an ONNX file is that of a "
         "small model with the same tokens, which the first stage computes beside its parts (a file called "
         "as another value here is `./ngram`). `coin:P` is for measuring, on peers with `--device "
         "null:TYPE`: its guesses are right with probability P.",
     .example = "serve: {name: my-model, draft: ngram}",
     .otherwise = "none",
     .takes = "`none`, `ngram`, `coin:P` or the name of a file",
     .task = Task::Serve},
};

}  // namespace

std::span<const JobKeySection> job_key_sections() {
  static const JobKeySection kSections[] = {
      {"The file", "", kFile},
      {"Inputs", "", kInputs},
      {"Data",
       "[DATA.md](DATA.md) says what is taken and what is refused, [MODELS.md](MODELS.md#data) which types "
       "of "
       "numbers.",
       data_job_keys()},
      {"Loss",
       "A list of losses has these keys in each of its items. [MODELS.md](MODELS.md#the-loss) says how the "
       "loss of a "
       "step is counted.",
       kLoss},
      {"Steps", "", kSteps},
      {"What is trained, and how", "", kOptimizer},
      {"Adapters", "", adapter_job_keys()},
      {"What is written", "", output_job_keys()},
      {"Replicas",
       "Over slow lines several copies of a model, each on machines near each other, learn faster than one "
       "that "
       "is cut across them. `weft submit` puts each on peers of its own, in as many stages as it needs; "
       "`weft "
       "local` computes all of them, one after the other: the same bytes.",
       replica_job_keys()},
      {"Serving",
       "A job with `task: serve` has these keys, `model` and, of `placement`, `stages`, `equal_bits` and "
       "`exclude`. What belongs to training or data means nothing there and is refused.",
       kServe},
      {"On many machines", "", kMachines},
  };
  return kSections;
}

}  // namespace weft::configs
