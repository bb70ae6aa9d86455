// What a user gets to read: each wrong job, the place and the words.
#include <gtest/gtest.h>

#include "configs/job.h"
#include "tests/configs/small_job.h"

namespace weft::configs {
namespace {

std::string message_of(const std::string& text, const std::vector<std::string>& sets = {},
                       ErrorCode code = ErrorCode::InvalidArgument) {
  const auto job = parse_job(text, sets, {.source = "job.yaml", .folder = "", .check_files = false});
  if (job) return "(no error)";
  EXPECT_EQ(job.error().code, code) << job.error().message;
  return job.error().message;
}

std::string without(const std::string& line_start) {
  std::string text = kSmall;
  const size_t begin = text.find(line_start);
  return text.erase(begin, text.find('\n', begin) - begin + 1);
}

struct Case {
  std::string set;
  std::string message;
};

TEST(JobErrors, UnknownKeysAreSuggestedAt) {
  EXPECT_EQ(message_of(kSmall + "batchsize: 3\n"),
            "job.yaml:10:1: unknown key `batchsize` (did you mean 'batch_size'?)");
  EXPECT_EQ(message_of(kSmall, {"optimizer.momemtum=0.9"}),
            "--set optimizer.momemtum: unknown key `optimizer.momemtum` (did you mean 'momentum'?)");
  EXPECT_EQ(message_of(kSmall, {"optimizer.betas=[0.9,0.99]"}),
            "--set optimizer.betas: unknown key `optimizer.betas`; there are: type, learning_rate, "
            "weight_decay, momentum, dampening, nesterov, slots, groups");
}

TEST(JobErrors, AValueIsANumberOrListsOfThemRowByRow) {
  for (const Case& wrong : std::vector<Case>{{"{value: a}", "`inputs.sr.value` must be a number, not 'a'"},
                                             {"{value: []}", "empty list"},
                                             {"{value: [[1], [2, 3]]}", "differ in length"},
                                             {"{value: [1, [2]]}", "differ in length"},
                                             {"{value: [[1], 2]}", "lists beside numbers"},
                                             {"{value: .nan}", "must be a number"},
                                             {"{}", "`inputs.sr.value` is missing"},
                                             {"{value: 1, unit: Hz}", "unknown key `inputs.sr.unit`"}}) {
    const std::string message = message_of(kSmall, {"inputs.sr=" + wrong.set});
    EXPECT_NE(message.find(wrong.message), std::string::npos) << wrong.set << ": " << message;
  }
}

TEST(JobErrors, WhatGradientsCannotGoThroughIsToldWithItsLine) {
  const std::string message =
      message_of(kSmall + "sync:\n  every: step\n  codec: \"topk:0.1:int8\"\n  overlap: true\n");
  EXPECT_EQ(message.find("job.yaml:12:10: `sync.codec`: topk:0.1:int8 leaves out"), 0u) << message;
  EXPECT_NE(message.find("\njob.yaml:13:12: `sync.overlap` is of replicas that make local steps"),
            std::string::npos)
      << message;
}

TEST(JobErrors, EveryProblemIsToldAtOnce) {
  const std::string message = message_of(kSmall, {"batch_size=x", "steps=0", "seeed=1"});
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
}

TEST(JobErrors, RequiredKeysAreMissed) {
  for (const char* key : {"model", "task", "inputs", "loss", "batch_size", "steps", "optimizer"}) {
    SCOPED_TRACE(key);
    const std::string message = message_of(without(std::string(key) + ":"));
    EXPECT_EQ(message.find("job.yaml:1:1: `" + std::string(key) + "` is missing; "), 0u) << message;
  }
  EXPECT_NE(message_of(without("  train:")).find("`data` must be a map"), std::string::npos);
}

TEST(JobErrors, WrongValuesSayWhatIsRight) {
  const std::vector<Case> cases = {
      {"batch_size=0", "`batch_size` must be a whole number from 1 to 4194304, not '0'"},
      {"batch_size=-1", "not '-1'"},
      {"batch_size=6.5", "whole number"},
      {"batch_size='64'", "whole number"},
      {"batch_size=64abc", "whole number"},
      {"batch_size=[64]", "not a list"},
      {"batch_size=99999999999999999999", "whole number"},
      {"microbatch_size=48", "`batch_size` (64) must be a multiple of `microbatch_size` (48)"},
      {"microbatch_size=128", "multiple"},
      {"task=fit", "`task` cannot be 'fit'; there are: train, predict"},
      {"task=trian", "did you mean 'train'?"},
      {"shuffle=yes", "must be true or false"},
      {"seed=-1", "`seed`"},
      {"freeze=mask", "must be a list"},
      {"freeze=[[a]]", "must be a text, not a list"},
      {"inputs={}", "must be a map from graph inputs"},
      {"inputs=[x]", "must be a map from graph inputs"},
      {"inputs.x=[image]", "must be a text"},
      {"loss=cross_entropy", "`loss` must be a map"},
      {"loss.type=crossentropy", "did you mean 'cross_entropy'?"},
      {"loss.axis=0.5", "`loss.axis`"},
      {"loss.ignore_index=0.5", "`loss.ignore_index` must be a whole number"},
      {"loss={type: mse, logits: y, target: t}", "`loss.output` is missing"},
      {"loss={type: mse, output: y, target: t, labels: l}", "unknown key `loss.labels`"},
      {"loss.weight=nan", "`loss.weight` must be a number, not 'nan'"},
      {"loss.weight=-inf", "`loss.weight` must be a number"},
      {"loss.weight=1e7", "it must be from -1e+06 to 1e+06"},
      {"loss=[]", "`loss` is a list of 0 losses; it must hold 1 to 64"},
      {"loss=[cross_entropy]", "`loss[0]` must be a map (key: value), not 'cross_entropy'"},
      {"loss=[{type: mse, output: y, target: t}, {type: mse, output: y}]", "`loss[1].target` is missing"},
      {"loss=[{type: mse, output: y, target: t, weigth: 2}]",
       "unknown key `loss[0].weigth` (did you mean 'weight'?)"},
      {"optimizer.learning_rate=fast", "`optimizer.learning_rate` must be a number, not 'fast'"},
      {"optimizer.learning_rate=nan", "must be a number"},
      {"optimizer.learning_rate=inf", "must be a number"},
      {"optimizer.learning_rate=-0.1", "must be at least 0"},
      {"optimizer.learning_rate=1e999", "must be a number"},
      {"optimizer.nesterov=true", "needs a momentum"},
      {"optimizer={type: sgd}", "`optimizer.learning_rate` is missing"},
      {"optimizer={type: adam, betas: [0.9]}", "list of two numbers"},
      {"optimizer={type: adam, betas: [0.9, 1.0]}", "from 0 to below 1"},
      {"optimizer={type: adam, momentum: 0.9}", "unknown key `optimizer.momentum`"},
      {"optimizer={type: rmsprop}", "there are: sgd, adam, adamw"},
      {"optimizer={type: adamw, slots: int4}", "did you mean 'int8'?"},
      {"optimizer.slots=int8", "sgd without a momentum has none"},
      {"schedule.type=cosin", "did you mean 'cosine'?"},
      {"schedule={type: cosine, final: 2}", "from 0 to 1"},
      {"schedule={type: constant, final: 0.1}", "unknown key `schedule.final`"},
      {"schedule={warmup_steps: 3}", "`schedule.type` is missing"},
      {"clip_norm=0", "must be above 0"},
      {"on_divergence=ignore", "there are: stop, skip"},
      {"on_divergence=[skip]", "`on_divergence`"},
      {"gradient_ranges=0", "`gradient_ranges` must be a whole number from 1"},
      {"replicas=0", "`replicas` must be a whole number from 1"},
      {"replicas=5000", "`replicas` must be a whole number from 1 to 1024"},
      {"replicas=3", "`replicas` is 3, but a step's"},
      {"replicas=many", "`replicas` must be a whole number from 1"},
      {"replicas=auto",
       "`replicas` leaves open how many there are, and each step's gradients are added in an"},
      {"replicas={min: 4, max: 2}", "`replicas.max` is 2, and `replicas.min` 4"},
      {"replicas={most: 4}", "unknown key `replicas.most`; there are: min, max"},

      {"sync=stepp", "`sync` is `step`, or says how often, as {every: 30}"},
      {"sync={}", "`sync.every` is missing; after how many steps"},
      {"sync={every: 0}", "`sync.every` must be a whole number from 1"},
      {"sync={every: 30, codec: topk}", "`sync.codec`: "},
      {"sync={every: auto}", "`sync.every` is chosen between two numbers: say which"},
      {"sync={every: {min: 10}}", "`sync.every.max` is missing"},
      {"sync={every: {max: 10}}", "`sync.every.min` is missing"},
      {"sync={every: {min: 0, max: 10}}", "`sync.every.min` must be a whole number from 1"},
      {"sync={every: {min: 20, max: 10}}", "`sync.every.max` is 10, and `sync.every.min` 20"},
      {"sync={every: {min: 10, max: 20, most: 3}}", "`sync.every.most`"},
      {"sync={every: {min: 10, max: 20}, shares: [20]}", "`sync.every` leaves open how many it has"},
      {"sync={every: {min: 10, max: 2000000}, shares: auto}", "is for rounds of at most 1048576 steps"},
      {"sync={every: step, codec: auto}", "`sync.codec: auto` is of replicas that make local steps"},
      {"sync={every: steps}", "`sync.every` must be a whole number from 1"},
      {"sync={every: step, codec: topk}", "`sync.codec`: "},
      {"sync={every: step, codec: \"topk:0.02:int4\"}",
       "`sync.codec`: topk:0.02:int4 leaves out most of a gradient, which would be lost"},
      {"sync={every: step, codec: bf16}", "`sync.codec`: bf16 rounds equal numbers always the same way"},
      {"sync={every: step, shares: [30, 10]}", "`sync.shares` is of replicas that make local steps"},
      {"sync={every: step, shares: auto}", "`sync.shares` is of replicas that make local steps"},
      {"sync={every: step, overlap: true}", "`sync.overlap` is of replicas that make local steps"},
      {"sync={every: step, settle_every: 4}", "`sync.settle_every` is of replicas that make local steps"},
      {"sync={every: step, outer: {type: average}}", "`sync.outer` is of replicas that make local steps"},
      {"sync={every: step, codecs: int8}", "did you mean"},
      {"sync={every: 30, outer: {type: nestrov}}", "did you mean"},
      {"sync={every: 30, shares: fast}", "`sync.shares` is `auto`, or one number a replica"},
      {"sync={every: 30, shares: [30, 10]}", "`sync.shares` has 2 numbers, and `replicas` is 1"},
      {"sync={every: 30, shares: [10]}", "the largest of `sync.shares` is 10, and `sync.every` 30"},
      {"sync={every: 30, shares: {a: 1}}", "`sync.shares` has 0 numbers"},
      {"sync={every: 2000000, shares: auto}", "is for rounds of at most 1048576 steps"},
      {"sync={every: 30, shares: [0]}", "`sync.shares` must be a whole number from 1"},
      {"sync={every: 30, overlap: often}", "`sync.overlap`"},
      {"sync={every: 30, settle_every: 4}",
       "`sync.settle_every` is of rounds that overlap; say overlap: true"},
      {"sync={every: 30, overlap: true, settle_every: 1}",
       "`sync.settle_every` must be a whole number from 2"},
      {"sync={every: 30, fragments: 3}", "`sync.fragments` is of rounds that overlap; say overlap: true"},
      {"sync={every: 30, overlap: true, fragments: 4}",
       "`sync.fragments` is 4, and a round has `sync.every` / `sync.fragments` steps: 30 is no multiple; say "
       "32, "
       "or 3 fragments"},
      {"sync={every: {min: 10, max: 21}, overlap: true, fragments: 2}",
       "21 is no multiple; say 22, or 1 fragment"},
      {"sync={every: 30, overlap: true, fragments: 65}",
       "`sync.fragments` must be a whole number from 1 to 64"},
      {"sync={every: 30, overlap: true, settle_every: 1024, fragments: 2}",
       "that is more than 1024 agreements"},
      {"sync={every: step, fragments: 2}", "`sync.fragments` is of replicas that make local steps"},
      {"optimizer_state=halved", "`optimizer_state`"},
      {"sync={every: 30, outer: {momentum: 1}}", "`sync.outer.momentum` is 1; it must be from 0 to below 1"},
      {"sync={every: 30, outer: {type: average, momentum: 0.5}}", "type: average has no learning_rate"},
      {"gradient_ranges=3", "microbatches cannot be dealt to as many equal ranges"},
      {"evaluate_every=10", "add `data.test`"},
      {"checkpoint.every=60", "say `steps: N`"},
      {"checkpoint.every=0s", "must be a time"},
      {"checkpoint.every=1000h", "up to 30 days"},
      {"checkpoint.every=99999999999999h", "must be a time"},
      {"checkpoint={every: 60s, steps: 5}", "one of `every`"},
      {"checkpoint={}", "one of `every`"},
      {"precision=fp31", "did you mean 'fp32'?"},
      {"precision=fp8", "there are: fp32, tf32, bf16"},
      {"placement.stages=0", "`placement.stages` must be a whole number from 1"},
      {"placement.stages=many", "`placement.stages`"},
      {"placement={strategy: fastest}", "there are: auto, op-fence, equal-ops"},
      {"placement={equal_bits: always}", "there are: require, prefer, ignore"},
      {"placement={}", "`placement.stages` is missing"},
      {"placement={exclude: attic}", "`placement.exclude` must be a list of peers' names"},
      {"placement={exclude: [{}]}", "`placement.exclude[0]` must be a text"},
      {"placement={pin: {inputs: lab}}", "`placement.pin` must be a list"},
      {"placement={pin: [inputs]}", "`placement.pin[0]` must be a map"},
      {"placement={pin: [{ops: inputs}]}", "`placement.pin[0].peer` is missing; the name of the peer"},
      {"placement={pin: [{peer: lab}]}", "`placement.pin[0].ops` is missing"},
      {"placement={pin: [{ops: inputs, peer: lab, stage: 1}]}", "unknown key `placement.pin[0].stage`"},
      {"placement={exclude: [lab], pin: [{ops: inputs, peer: lab}]}", "'lab' is excluded"},
      {"placement={owner: me}", "`placement.owner` must be a number, not 'me'"},
      {"placement={owner: 0}", "`placement.owner`"},
      {"placement={owner: 1.5}", "`placement.owner`"},
      {"compression.policy=zip", "there are: none, auto, adatopk, uniform"},
      {"compression={policy: uniform, codec: int7}", "`codec`: "},
      {"compression={policy: adatopk, codec: int8}", "`codec` goes with policy: uniform"},
      {"compression={policy: uniform, codec: int8, ratio: 4}", "leave `ratio` and `values` away"},
      {"compression={policy: adatopk, ratio: 0.5}", "`compression.ratio`"},
      {"compression={policy: adatopk, values: int3}", "`compression.values` cannot be 'int3'"},
      {"data.train.type=sqlite", "there are: idx, npz, text, tokens, npy, csv, images"},
      {"data.train={type: npz}", "`data.train.path` is missing"},
      {"data.train={type: npz, path: ''}", "must be a text"},
      {"data.train={type: idx, images: i, labels: l, deviation: 0}", "must be above 0"},
      {"data.train={type: text, path: c}", "`data.train.sequence_length` is missing"},
      {"data.train={type: text, path: c, sequence_length: 8, validation: 1}", "from 0 to below 1"},
      {"data.predict={type: npz, path: x}", "unknown key `data.predict`"},
      {"data=x", "`data` must be a map"},
      {"model={}", "`model` must be a text, not a map"},
      {"output=[]", "`output` must be a text"},
      {"output={path: t.onnx, base: lnk}", "`output.base`"},
      {"output={path: t.onnx, merged: int4}", "`output.merged`"},
      {"output={path: t.onnx, merged: float16}", "it goes with `adapters`"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.set);
    const std::string message = message_of(kSmall, {c.set});
    EXPECT_NE(message.find(c.message), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with("--set ") || message.starts_with("job.yaml:")) << message;
  }
}

TEST(JobErrors, WrongLossesOfAListAreToldByTheirLines) {
  const std::string list =
      "loss:\n  - {type: cross_entropy, logits: a, labels: l}\n"
      "  - {type: cross_entropy, logits: b, labels: l, weight: heavy}\n  - {type: l3}\n";
  const std::string message = message_of(without("loss:") + list);
  EXPECT_NE(message.find("job.yaml:11:57: `loss[1].weight` must be a number, not 'heavy'"), std::string::npos)
      << message;
  EXPECT_NE(message.find("job.yaml:12:12: `loss[2].type` cannot be 'l3'"), std::string::npos) << message;
}

TEST(JobErrors, TooManyLossesAreRefused) {
  std::string list = "loss:\n";
  for (int i = 0; i < 65; ++i) list += "  - {type: output, name: loss}\n";
  const std::string message = message_of(without("loss:") + list);
  EXPECT_NE(message.find("`loss` is a list of 65 losses"), std::string::npos) << message;
}

TEST(JobErrors, TestDataAndValidationExcludeEachOther) {
  const std::string message =
      message_of(kSmall, {"data.train={type: text, path: c, sequence_length: 8, validation: 0.1}",
                          "data.test={type: npz, path: t.npz}"});
  EXPECT_NE(message.find("keep one"), std::string::npos) << message;
}

TEST(JobErrors, ReplicasWithLocalStepsShareNoSlots) {
  const std::string message =
      message_of(kSmall + "replicas: 2\nsync: {every: 30}\noptimizer_state: shared\n");
  EXPECT_EQ(message.find("job.yaml:12:18: `optimizer_state: shared` is of replicas that add up each step's"),
            0u)
      << message;
}

TEST(JobErrors, SharedSlotsHaveNoCodec) {
  const std::string message =
      message_of(kSmall + "replicas: 2\nsync: {every: step, codec: int8}\noptimizer_state: shared\n");
  EXPECT_NE(message.find("`optimizer_state: shared` sends weights, which travel as they are"),
            std::string::npos)
      << message;
}

TEST(JobErrors, AnotherFormatHasACodeOfItsOwn) {
  EXPECT_NE(message_of("format: 2\n" + kSmall, {}, ErrorCode::VersionMismatch).find("reads format 1"),
            std::string::npos);
}

TEST(JobErrors, FilesThatAreNoMapsAreRefused) {
  EXPECT_EQ(message_of("hello\n"), "job.yaml:1:1: the file must be a map (key: value), not 'hello'");
  EXPECT_EQ(message_of("- a\n"), "job.yaml:1:1: the file must be a map (key: value), not a list");
}

TEST(JobErrors, TooManyProblemsAreCounted) {
  std::string text = kSmall;
  for (int i = 0; i < 100; ++i) text += "unknown" + std::to_string(i) + ": 1\n";
  const std::string message = message_of(text);
  EXPECT_NE(message.find("and 80 more problems"), std::string::npos) << message;
}

const std::string kServes = R"(model: model.onnx
task: serve
serve: {name: gpt, tokenizer: t.json, context: 512, sequences_max: 4}
placement: {stages: 2, exclude: [attic]}
)";

TEST(JobErrors, AJobThatServesHasItsKeysAndNoOthers) {
  const auto job = parse_job(kServes, {}, {.source = "job.yaml", .folder = "there", .check_files = false});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->task, Task::Serve);
  EXPECT_EQ(job->serve->name, "gpt");
  EXPECT_EQ(job->serve->tokenizer, "there/t.json");
  EXPECT_EQ(job->serve->context, 512u);
  EXPECT_EQ(job->serve->sequences_max, 4u);
  EXPECT_EQ(job->serve->rows_max, 64u);
  EXPECT_EQ(job->placement.stages, 2u);
  EXPECT_EQ(job->batch_size, 1u);
  for (const char* set : {"inputs={x: y}",
                          "data={}",
                          "batch_size=4",
                          "microbatch_size=2",
                          "shuffle=true",
                          "seed=1",
                          "loss={}",
                          "steps=3",
                          "epochs=3",
                          "train=[a]",
                          "freeze=[a]",
                          "optimizer={}",
                          "schedule={}",
                          "clip_norm=1",
                          "on_divergence=skip",
                          "gradient_ranges=1",
                          "replicas=2",
                          "sync=step",
                          "evaluate_every=4",
                          "checkpoint={}",
                          "precision=bf16",
                          "compression={}",
                          "output=out.onnx",
                          "placement.strategy=auto",
                          "placement.owner=0.5"}) {
    const std::string key = std::string(set).substr(0, std::string(set).find('='));
    EXPECT_EQ(message_of(kServes, {set}),
              "--set " + key + ": `" + key + "` means nothing with `task: serve`; take it away");
  }
  for (const char* pins : {"placement.pin=[]", "placement.pin=[{ops: inputs, peer: lab}]"})
    EXPECT_EQ(
        message_of(kServes, {pins}),
        "--set placement.pin: `placement.pin` cannot be kept with `task: serve`, whose stages are parts that "
        "the planner finds; take it away, and keep peers out with `placement.exclude`");
}

TEST(JobErrors, AJobThatServesMayNameTheResultOfAnother) {
  const auto job = parse_job(kServes, std::vector<std::string>{"model=job:12", "serve.tokenizer=null"},
                             {.source = "job.yaml", .folder = "nowhere"});
  ASSERT_TRUE(job.has_value()) << job.error().message;
  EXPECT_EQ(job->serve->model_of, 12u);
  EXPECT_TRUE(job->model.empty());
  for (const char* file : {"model=\"job:\"", "model=job:0", "model=job:x", "model=job:1x", "model=job:-1",
                           "model=job:99999999999999999999"}) {
    const auto other = parse_job(kServes, std::vector<std::string>{file},
                                 {.source = "job.yaml", .folder = {}, .check_files = false});
    ASSERT_TRUE(other.has_value()) << file;
    EXPECT_FALSE(other->serve->model_of.has_value()) << file;
  }
  EXPECT_NE(message_of(kSmall, {"model=job:3"}).find("goes with `task: serve`"), std::string::npos);
}

TEST(JobErrors, AJobThatServesSaysWhoGuesses) {
  using Kind = plan::DraftKind;
  const auto draft_of = [](const std::vector<std::string>& sets) {
    const auto job =
        parse_job(kServes, sets, {.source = "job.yaml", .folder = "there", .check_files = false});
    EXPECT_TRUE(job.has_value()) << job.error().message;
    return job ? job->serve->draft : DraftTerms{};
  };
  EXPECT_EQ(draft_of({}).kind, Kind::None);
  EXPECT_EQ(draft_of({"serve.draft=none"}).kind, Kind::None);
  EXPECT_EQ(draft_of({"serve.draft=ngram"}).kind, Kind::Ngram);
  for (const auto& [text, right] : {std::pair{"0", 0.0}, {"0.8", 0.8}, {"1", 1.0}}) {
    const DraftTerms coin = draft_of({std::string("serve.draft=coin:") + text});
    EXPECT_EQ(coin.kind, Kind::Coin);
    EXPECT_EQ(coin.right, right);
  }
  for (const char* name : {"small.onnx", "./ngram", "coin.onnx"}) {
    const DraftTerms file = draft_of({std::string("serve.draft=") + name});
    EXPECT_EQ(file.kind, Kind::Decoder) << name;
    EXPECT_EQ(file.file, std::filesystem::path(name).lexically_normal()) << "--set: of the current folder";
  }
  const auto missing = parse_job(kServes, std::vector<std::string>{"serve.draft=none.onnx"},
                                 {.source = "job.yaml", .folder = "nowhere"});
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("`serve.draft`: none.onnx: no such file"), std::string::npos)
      << missing.error().message;
}

TEST(JobErrors, WhatAJobThatServesSaysIsBounded) {
  for (const Case& wrong : std::vector<Case>{
           {"serve=null", "`serve` is missing"},
           {"serve.name=null", "`serve.name` is missing"},
           {"serve.name=" + std::string(300, 'a'), "`serve.name` has at most 256 bytes"},
           {"serve.name=\"a\\nb\"", "no control characters"},
           {"serve.context=-1", "`serve.context` must be a whole number"},
           {"serve.sequences_max=0", "`serve.sequences_max` must be a whole number from 1 to 4096"},
           {"serve.rows_max=5000", "`serve.rows_max` must be a whole number from 1 to 4096"},
           {"serve.objective=speed", "`serve.objective`"},
           {"serve.draft=[ngram]", "`serve.draft` must be a text"},
           {"serve.draft=\"coin:\"", "`serve.draft: coin:P` needs a number from 0 to 1"},
           {"serve.draft=coin:1.01", "needs a number from 0 to 1"},
           {"serve.draft=coin:-0.5", "needs a number from 0 to 1"},
           {"serve.draft=coin:nan", "needs a number from 0 to 1"},
           {"serve.draft=coin:0.5x", "needs a number from 0 to 1"},
           {"serve.token=x", "unknown key `serve.token`"}}) {
    const std::string message = message_of(kServes, {wrong.set});
    EXPECT_NE(message.find(wrong.message), std::string::npos) << wrong.set << ": " << message;
  }
  EXPECT_NE(message_of(kSmall, {"serve={name: a}"}).find("`serve` goes with `task: serve`"),
            std::string::npos);
  const auto missing = parse_job(kServes, {}, {.source = "job.yaml", .folder = "nowhere"});
  ASSERT_FALSE(missing.has_value());
  EXPECT_NE(missing.error().message.find("`serve.tokenizer`: nowhere/t.json: no such file"),
            std::string::npos)
      << missing.error().message;
}

}  // namespace
}  // namespace weft::configs
