#include "configs/job_keys.h"

namespace weft::configs {
namespace {

constexpr JobKey kReplicas[] = {
    {.path = "replicas",
     .meaning =
         "How many copies of the model learn side by side, each from samples of its own. With `auto`, or a "
         "map of `min` and `max`, a run has as many as pay of the peers that are there: it grows when others "
         "join and goes on with fewer when some leave. What is learned then depends on who was there; the "
         "record `trained.rounds.jsonl` says it. With `sync: step` there are as many as pay, too, and a "
         "number says how many at most; what is learned does not depend on them, unless they have a codec.",
     .example = "replicas: 4\nsync: {every: 30}",
     .otherwise = "1",
     .takes = "a whole number from 1 to 1024, `auto`, or a map with `min` and `max`"},
    {.path = "replicas.min",
     .meaning = "How many there are at least: the run waits for them. `weft local` computes these.",
     .example = "replicas: {min: 2}\nsync: {every: 30}",
     .otherwise = "1"},
    {.path = "replicas.max",
     .meaning = "How many there are at most.",
     .example = "replicas: {min: 2, max: 8}\nsync: {every: 30}",
     .otherwise = "1024"},
    {.path = "sync",
     .meaning = "When replicas come to the same weights. With `step` each computes a part of every step, and "
                "they add up its gradients: the bytes of one machine, unless they have a `codec`. With a "
                "number as `every` each makes steps of `batch_size` samples alone, with the job's optimizer, "
                "and all agree now and then; `steps` are those of all of them together. "
                "[design/replicas.md](design/replicas.md) says what is computed.",
     .example = "sync: {every: 10}",
     .otherwise = "step",
     .takes = "`step`, or a map with `every`"},
    {.path = "sync.every",
     .meaning =
         "How many steps a replica makes alone before all agree. `step` is what `sync: step` is, with "
         "room for a `codec`; the other keys here are then errors. With `min` and `max` the broker takes "
         "the fewest with which replicas make at least 0.95 of the samples a second that they make with "
         "`max`. It takes them when the job is planned first, keeps them, and says them; a job that "
         "names them gets the same bytes. `weft local` takes `min`.",
     .example = "replicas: 2\nsync: {every: 100}",
     .takes = "`step`, a whole number from 1 to 1099511627776, or a map with `min` and `max`"},
    {.path = "sync.every.min",
     .meaning = "The fewest steps of a round.",
     .example = "replicas: 2\nsync: {every: {min: 10, max: 100}}"},
    {.path = "sync.every.max",
     .meaning = "The most steps of a round.",
     .example = "replicas: 2\nsync: {every: {min: 10, max: 100}}"},
    {.path = "sync.shares",
     .meaning =
         "How many steps of a round each replica makes; the largest number is `every`. A replica on slower "
         "machines then makes fewer, and its difference counts for fewer. With `auto` the broker takes what "
         "each can make in the time of the fastest, and says it; a job that names these shares gets the same "
         "bytes. For `weft local` all are equally fast.",
     .example = "replicas: 2\nsync: {every: 30, shares: [30, 10]}",
     .otherwise_words = "`every`, for each",
     .takes = "`auto`, or one number a replica"},
    {.path = "sync.codec",
     .meaning =
         "How a replica's difference to the weights agreed last is written, and the mean of all of them. "
         "What a codec leaves out is added to the next difference. With `every: step` it is how sums of "
         "gradients are written, there and back. Then only `int8`, `int6`, `int5`, `int4` and `int3` are "
         "taken, each also as `int8z` where gradients are mostly zeros: they round by chance and leave "
         "nothing out, for nobody makes up later for what a single step lost. All replicas still update by "
         "the same bytes. But these depend on who computes what: on how many replicas there are, which "
         "ranges each has, and who adds up which gradient. `weft local` computes without this codec. With "
         "`auto`, which is of local steps, the broker takes `topk:0.02:int4` where that makes 1.25 times the "
         "samples a second of `int4`, and else `int4`, as it takes `every`; `weft local` takes `int4`.",
     .example = "replicas: 2\nsync: {every: 30, codec: \"topk:0.02:int4\"}",
     .otherwise = "dense",
     .takes = "a codec, as `dense`, `int4` or `topk:0.02:int4`, or `auto`"},
    {.path = "sync.overlap",
     .meaning =
         "Whether an agreement travels while the next round is made, and is taken at that one's end: no "
         "replica waits for its line. Other bytes come of it. A lost peer costs what its replica made of "
         "two rounds.",
     .example = "replicas: 2\nsync: {every: 30, codec: int4, overlap: true}",
     .otherwise = "false"},
    {.path = "sync.settle_every",
     .meaning =
         "With `overlap`: after so many rounds all wait for their agreement, and have the same weights. "
         "Evaluations and checkpoints wait for that; a stop waits for the round under way.",
     .example = "replicas: 2\nsync: {every: 30, overlap: true, settle_every: 8}",
     .otherwise = "4"},
    {.path = "sync.fragments",
     .meaning =
         "With `overlap`: into how many parts, about equally large, the model's tensors are dealt, which are "
         "agreed about in turn. Each still meets the others after `every` steps. But what travels at a time "
         "is one of them, and its mean is taken `every` / `fragments` steps later instead of `every`: less "
         "is late. `every`, and shares, are multiples of it.",
     .example = "replicas: 2\nsync: {every: 30, codec: int4, overlap: true, fragments: 3}",
     .otherwise = "1"},
    {.path = "sync.outer",
     .meaning =
         "What becomes of that mean. A model with running statistics (BatchNorm) wants `average`: they are "
         "averaged, and `nesterov` carries the weights further than that.",
     .example = "replicas: 2\nsync: {every: 30, outer: {type: average}}",
     .otherwise_words = "`nesterov`"},
    {.path = "sync.outer.type",
     .meaning = "`average` adds the mean to the weights; `nesterov` takes it as the gradient of a step with "
                "momentum, as DiLoCo does.",
     .example = "replicas: 2\nsync: {every: 30, outer: {type: average}}",
     .otherwise = "nesterov"},
    {.path = "sync.outer.learning_rate",
     .meaning = "The learning rate of `nesterov`.",
     .example = "replicas: 2\nsync: {every: 30, outer: {learning_rate: 0.5}}",
     .otherwise = "0.7"},
    {.path = "sync.outer.momentum",
     .meaning = "The momentum of `nesterov`, below 1.",
     .example = "replicas: 2\nsync: {every: 30, outer: {momentum: 0.8}}",
     .otherwise = "0.9"},
    {.path = "optimizer_state",
     .meaning =
         "Who has what the optimizer keeps beside each parameter, of replicas with `sync: step`. With "
         "`replicated` each has all of it. With `shared` one of them alone has it of a parameter, makes its "
         "update and sends the others the weights. The bytes are the same, and as many travel in a step; of "
         "N replicas each keeps about an Nth. Copies of the state go to the broker. It means nothing where "
         "there is one replica or an optimizer that keeps nothing, and to `weft local`. With local steps, or "
         "a `sync.codec`, it is an error.",
     .example = "batch_size: 64\nmicrobatch_size: 16\nreplicas: 4\noptimizer_state: shared",
     .otherwise = "replicated",
     .takes = "`replicated` or `shared`"},
};

}  // namespace

std::span<const JobKey> replica_job_keys() { return kReplicas; }

}  // namespace weft::configs
