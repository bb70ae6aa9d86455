#include "configs/job.h"

#include <charconv>
#include <limits>
#include <set>
#include <system_error>

#include "configs/job_data.h"
#include "configs/job_keys.h"
#include "configs/job_sections.h"
#include "configs/reader.h"
#include "dag/metrics.h"
#include "data/file.h"
#include "data/kinds.h"
#include "data/sample_sequence.h"
#include "plan/strategy.h"

namespace weft::configs {
namespace {

constexpr uint64_t kEpochsMax = uint64_t{1} << 30;
constexpr size_t kExcludedMax = 256;  // peers
constexpr Duration kCheckpointEveryMax = std::chrono::hours(24 * 30);

constexpr Choice<Task> kTasks[] = {
    {"train", Task::Train}, {"predict", Task::Predict}, {"serve", Task::Serve}};

void read_train_data(MapReader& reader, const PathRules& rules, Problems& problems, Job& job) {
  if (const Node* train = reader.require("train", "say what to train on"))
    job.train = read_data_spec(*train, "data.train", rules, problems);
  const Node* test = reader.take("test");
  if (test) job.test = read_data_spec(*test, "data.test", rules, problems);
  if (job.test && job.train) share_classes(*job.train, *job.test);
  if (job.test && data::validation_of(*job.test) > 0)
    reader.problem(test->where, "`data.test.validation` has no meaning; `validation` belongs to data.train");
  if (!job.train || data::validation_of(*job.train) == 0) return;
  if (test) {
    reader.problem(test->where, "`data.test` and `data.train.validation` both say what to test on; keep one");
    return;
  }
  job.test = data::kept_for_validation(*job.train);
}

void read_data(MapReader& root, const PathRules& rules, Problems& problems, Job& job) {
  const Node* node =
      root.require("data", job.task == Task::Train ? "it needs `train`" : "it needs `predict`");
  if (!node) return;
  MapReader reader(*node, "data", problems);
  if (job.task == Task::Train) {
    read_train_data(reader, rules, problems, job);
  } else if (const Node* predict = reader.require("predict", "say what to predict on")) {
    job.predict = read_data_spec(*predict, "data.predict", rules, problems);
  }
  reader.finish();
}

void read_batch(MapReader& root, Job& job) {
  const Node* batch = root.require("batch_size", "say how many samples a step takes, as 64");
  if (batch)
    job.batch_size = static_cast<uint32_t>(root.parse_count(*batch, "batch_size", 1, kBatchMax).value_or(0));
  job.microbatch_size = job.batch_size;
  const Node* microbatch = root.take("microbatch_size");
  if (!microbatch) return;
  if (microbatch->kind == Node::Kind::Scalar && microbatch->text == "auto") {
    job.microbatch_size = 0;
    return;
  }
  const auto size = root.parse_count(*microbatch, "microbatch_size", 1, kBatchMax);
  if (!size) return;
  job.microbatch_size = static_cast<uint32_t>(*size);
  if (job.batch_size > 0 && job.batch_size % job.microbatch_size != 0)
    root.problem(microbatch->where, "`batch_size` (" + std::to_string(job.batch_size) +
                                        ") must be a multiple of `microbatch_size` (" +
                                        std::to_string(job.microbatch_size) + "); auto chooses one");
}

void read_length(MapReader& root, Job& job) {
  const Node* steps = root.take("steps");
  const Node* epochs = root.take("epochs");
  if (steps) job.steps = root.parse_count(*steps, "steps", 1, kStepsMax);
  if (epochs) job.epochs = root.parse_count(*epochs, "epochs", 1, kEpochsMax);
  if (steps && epochs && steps->where.from_set != epochs->where.from_set) {
    // One of them was given on the command line, over what the file says.
    steps->where.from_set ? job.epochs.reset() : job.steps.reset();
  } else if (steps && epochs) {
    root.problem(epochs->where, "`steps` and `epochs` both say how long to train; keep one");
  }
  if (!steps && !epochs && root.is_map())
    root.problem(root.where(), "`steps` is missing; say how long to train, in steps or epochs");
}

std::optional<Duration> parse_duration(std::string_view text) {
  uint64_t amount = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), amount);
  if (error != std::errc() || amount == 0 || amount > 100'000'000) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const auto count = static_cast<int64_t>(amount);
  Duration duration{};
  if (unit == "s")
    duration = std::chrono::seconds(count);
  else if (unit == "m")
    duration = std::chrono::minutes(std::min<int64_t>(count, 1'000'000));
  else if (unit == "h")
    duration = std::chrono::hours(std::min<int64_t>(count, 10'000));
  else
    return std::nullopt;
  if (duration > kCheckpointEveryMax) return std::nullopt;
  return duration;
}

void read_checkpoint(MapReader& root, Problems& problems, Job& job) {
  const Node* node = root.take("checkpoint");
  if (!node) return;
  MapReader reader(*node, "checkpoint", problems);
  const Node* every = reader.take("every");
  const Node* steps = reader.take("steps");
  if (every) {
    if (every->kind == Node::Kind::Scalar) job.checkpoint.every = parse_duration(every->text);
    if (!job.checkpoint.every)
      reader.problem(every->where,
                     "`checkpoint.every` must be a time up to 30 days, as 60s, 5m or 1h; for a number of "
                     "steps say `steps: N`");
  }
  if (steps) job.checkpoint.steps = reader.parse_count(*steps, "steps", 1, kStepsMax);
  if (reader.is_map() && (every != nullptr) == (steps != nullptr))
    reader.problem(node->where, "`checkpoint` needs one of `every` (a time) and `steps`");
  reader.finish();
}

void read_precision(MapReader& root, Job& job) {
  static constexpr Choice<dag::Arithmetic> kPrecisions[] = {
      {"fp32", dag::Arithmetic::F32}, {"tf32", dag::Arithmetic::TF32}, {"bf16", dag::Arithmetic::BF16}};
  if (const auto chosen = root.choice(root.take("precision"), "precision", kPrecisions))
    job.arithmetic = *chosen;
}

void read_strategy(MapReader& reader, const Node& node, Job& job) {
  job.placement.strategy = node.text;
  if (node.kind == Node::Kind::Scalar && plan::find_strategy(job.placement.strategy) != nullptr) return;
  std::string names;
  for (const plan::NamedStrategy& one : plan::strategies())
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  reader.problem(node.where, "`placement.strategy` is none of those there are: " + names);
}

void read_exclude(MapReader& reader, const Node& node, Job& job) {
  if (node.kind != Node::Kind::Sequence)
    return reader.problem(node.where,
                          "`placement.exclude` must be a list of peers' names, as [attic, lab-2]");
  if (node.items.size() > kExcludedMax)
    return reader.problem(node.where,
                          "`placement.exclude` has more than " + std::to_string(kExcludedMax) + " names",
                          ErrorCode::ResourceExhausted);
  for (size_t i = 0; i < node.items.size(); ++i)
    if (const auto name = reader.parse_text(node.items[i], "exclude[" + std::to_string(i) + "]"))
      job.placement.exclude.push_back(*name);
}

void read_pins(MapReader& reader, const Node& node, Problems& problems, Job& job) {
  if (node.kind != Node::Kind::Sequence)
    return reader.problem(node.where, "`placement.pin` must be a list, as [{ops: inputs, peer: lab}]");
  for (size_t i = 0; i < node.items.size(); ++i) {
    MapReader pin(node.items[i], "placement.pin[" + std::to_string(i) + "]", problems);
    plan::PinRule rule{pin.required_text("ops", "an op's name, the beginning of some, inputs or labels"),
                       pin.required_text("peer", "the name of the peer that is to have them")};
    pin.finish();
    if (std::find(job.placement.exclude.begin(), job.placement.exclude.end(), rule.peer) !=
        job.placement.exclude.end())
      pin.problem(node.items[i].where, "'" + rule.peer + "' is excluded: nothing can be pinned to it");
    job.placement.pins.push_back(std::move(rule));
  }
}

// The parts of a served model have no names, and every stage sees what the texts are made of.
void refuse_pins(MapReader& reader) {
  if (const Node* node = reader.take("pin"))
    reader.problem(
        node->where,
        "`placement.pin` cannot be kept with `task: serve`, whose stages are parts that the planner "
        "finds; take it away, and keep peers out with `placement.exclude`");
}

void read_placement(MapReader& root, Problems& problems, Job& job) {
  const Node* node = root.take("placement");
  if (!node) return;
  static constexpr Choice<plan::EqualBits> kEqualBits[] = {{"require", plan::EqualBits::Require},
                                                           {"prefer", plan::EqualBits::Prefer},
                                                           {"ignore", plan::EqualBits::Ignore}};
  MapReader reader(*node, "placement", problems);
  if (job.task == Task::Serve) {
    for (const char* key : {"strategy", "owner"}) refuse(reader, key);
    refuse_pins(reader);
  }
  const Node* equal_bits = reader.take("equal_bits");
  if (const auto choice = reader.choice(equal_bits, "equal_bits", kEqualBits))
    job.placement.equal_bits = *choice;
  const bool is_cut = job.task != Task::Serve;  // by the strategies, which know of pins and owners
  const Node* exclude = reader.take("exclude");
  const Node *strategy = is_cut ? reader.take("strategy") : nullptr,
             *pins = is_cut ? reader.take("pin") : nullptr, *owner = is_cut ? reader.take("owner") : nullptr;
  if (strategy) read_strategy(reader, *strategy, job);
  if (exclude) read_exclude(reader, *exclude, job);
  if (pins) read_pins(reader, *pins, problems, job);
  if (owner)
    job.placement.owner_share_max =
        reader.parse_number(*owner, "owner", {.min = 0, .max = 1, .above_min = true}).value_or(1);
  // Whoever says something else of plans need not say how many stages.
  const bool says_else = equal_bits || strategy || exclude || pins || owner;
  const Node* stages = says_else ? reader.take("stages") : reader.require("stages", "say auto or a number");
  const bool automatic = stages && stages->kind == Node::Kind::Scalar && stages->text == "auto";
  if (stages && !automatic) {
    const auto count = reader.parse_count(*stages, "stages", 1, 4096);
    if (count) job.placement.stages = static_cast<uint32_t>(*count);
  }
  reader.finish();
}

void read_compression(MapReader& root, Problems& problems, Job& job) {
  using plan::CompressionPolicy, compress::Values;
  static constexpr Choice<CompressionPolicy> kPolicies[] = {{"none", CompressionPolicy::None},
                                                            {"auto", CompressionPolicy::Auto},
                                                            {"adatopk", CompressionPolicy::AdaTopK},
                                                            {"uniform", CompressionPolicy::Uniform}};
  static constexpr Choice<Values> kValues[] = {
      {"fp32", Values::F32}, {"fp16", Values::F16}, {"int8", Values::I8}, {"int4", Values::I4}};
  const Node* node = root.take("compression");
  if (!node) return;
  MapReader reader(*node, "compression", problems);
  const auto policy = reader.choice(reader.require("policy", "say none"), "policy", kPolicies);
  plan::Compression& compression = job.compression;
  if (policy) compression.policy = *policy;
  const Node *codec = reader.take("codec"), *ratio = reader.take("ratio"), *values = reader.take("values");
  if (codec) {
    const auto text = reader.parse_text(*codec, "codec");
    const auto parsed = text ? compress::parse(*text) : Result<compress::Codec>{};
    if (!parsed) reader.problem(codec->where, "`codec`: " + parsed.error().message);
    if (text && parsed) compression.codec = *parsed;
    if (compression.policy != CompressionPolicy::Uniform)
      reader.problem(codec->where, "`codec` goes with policy: uniform; the others choose");
    else if (ratio || values)
      reader.problem(codec->where, "a `codec` says all: leave `ratio` and `values` away");
  }
  if (ratio)
    compression.ratio =
        reader.parse_number(*ratio, "ratio", {.min = 1, .max = 100'000}).value_or(compression.ratio);
  if (values)
    if (const auto chosen = reader.choice(values, "values", kValues)) compression.values = *chosen;
  reader.finish();
}

void take_patterns(MapReader& root, const char* key, std::vector<std::string>& patterns) {
  if (const Node* node = root.take(key))
    patterns = root.parse_patterns(*node, key, /*least=*/0, "[\"*.cos\", \"mask*\"]");
}

void read_training(MapReader& root, const PathRules& rules, Problems& problems, Job& job) {
  read_loss(root, problems, job);
  read_length(root, job);
  job.shuffle = root.flag("shuffle", true);
  job.seed = root.count("seed", 0, 0, std::numeric_limits<uint64_t>::max());
  take_patterns(root, "train", job.trained);
  take_patterns(root, "freeze", job.freeze);
  read_adapters(root, rules, problems, job);
  read_base(root, problems, job);
  read_optimizer(root, problems, job);
  read_schedule(root, problems, job);
  job.clip_norm = root.number("clip_norm", 0, {0, kInfinity, /*above_min=*/true});
  static constexpr Choice<dag::OnDivergence> kOnDivergence[] = {{"stop", dag::OnDivergence::Stop},
                                                                {"skip", dag::OnDivergence::Skip}};
  if (const auto chosen = root.choice(root.take("on_divergence"), "on_divergence", kOnDivergence))
    job.on_divergence = *chosen;
  read_replicas(root, problems, job);
  const Node* evaluate = root.take("evaluate_every");
  if (evaluate) job.evaluate_every = root.parse_count(*evaluate, "evaluate_every", 0, kStepsMax).value_or(0);
  if (job.evaluate_every > 0 && job.train && !job.test)
    root.problem(evaluate->where, "`evaluate_every` needs something to evaluate on; add `data.test`");
  read_checkpoint(root, problems, job);
}

// Of a job that goes through data.
void read_work(MapReader& root, const PathRules& rules, Problems& problems, Job& job) {
  read_init(root, rules, problems, job);
  read_inputs(root, problems, job);
  read_data(root, rules, problems, job);
  read_batch(root, job);
  if (job.task == Task::Train) read_training(root, rules, problems, job);
  read_precision(root, job);
  read_compression(root, problems, job);
  read_output(root, rules, problems, job);
  if (const Node* serve = root.take("serve"))
    root.problem(serve->where, "`serve` goes with `task: serve`; take it away, or serve the model");
}

void record_locations(const Node& node, const std::string& path,
                      std::map<std::string, Location, std::less<>>& into) {
  into[path] = node.where;
  for (const Entry& entry : node.entries)
    record_locations(entry.value, path.empty() ? entry.key : path + "." + entry.key, into);
  for (size_t i = 0; i < node.items.size(); ++i)
    record_locations(node.items[i], path + "[" + std::to_string(i) + "]", into);
}

// "job:3", what job 3 has learnt; nothing for what is the name of a file.
std::optional<uint64_t> job_named(const Node& node) {
  constexpr std::string_view kPrefix = "job:";
  if (node.kind != Node::Kind::Scalar || !node.text.starts_with(kPrefix)) return std::nullopt;
  uint64_t number = 0;
  const char* end = node.text.data() + node.text.size();
  const auto [rest, error] = std::from_chars(node.text.data() + kPrefix.size(), end, number);
  if (error != std::errc() || rest != end || number == 0) return std::nullopt;
  return number;
}

// What its first bytes tell of a file that is no model.
void check_model(MapReader& root, const Node& node, const std::filesystem::path& path) {
  const data::FileKind kind = data::kind_of(path);
  using enum data::FileKind;
  if (kind == Onnx || kind == Unknown || kind == Folder || kind == Text) return;
  root.problem(node.where, "`model`: " + path.string() + ": is " + std::string(data::name_of(kind)) +
                               ", not an ONNX model; " + data::as_model(kind, path));
}

void read_model(MapReader& root, const Node& node, const PathRules& rules, Job& job) {
  const std::optional<uint64_t> model_of = job_named(node);
  if (!model_of) {
    job.model = read_file(root, node, "model", rules);
    if (rules.check_files) check_model(root, node, job.model);
  } else if (job.task == Task::Serve) {
    job.serve.emplace().model_of = model_of;
  } else {
    root.problem(node.where, "`model: " + node.text +
                                 "` goes with `task: serve`; here name the ONNX file: `weft "
                                 "fetch " +
                                 std::to_string(*model_of) + " -o FILE` writes it");
  }
}

Result<Job> read_job(const Node& tree, const ParseOptions& options, AskedKeys* asked = nullptr) {
  Job job;
  job.source = options.source;
  record_locations(tree, "", job.locations);
  Problems problems(asked);
  const PathRules rules{options.folder, options.check_files};
  MapReader root(tree, "", problems);
  root.check_format();
  const Node* model = root.require("model", "name the ONNX file");
  job.task =
      root.choice(root.require("task", "say train, predict or serve"), "task", kTasks).value_or(Task::Train);
  if (model != nullptr) read_model(root, *model, rules, job);
  if (job.task == Task::Serve)
    read_serve(root, rules, problems, job);
  else
    read_work(root, rules, problems, job);
  read_placement(root, problems, job);
  root.finish();
  if (!problems.empty()) return fail(problems.error());
  // What a data set holds beside the named columns does not matter.
  for (std::optional<data::DataSpec>* spec : {&job.train, &job.test, &job.predict})
    if (*spec) data::keep_columns(**spec, job.columns());
  return job;
}

}  // namespace

std::vector<uint32_t> Job::microbatch_sizes() const {
  constexpr uint32_t kMicrobatchesMax = 512;  // more only cost time to plan
  const uint32_t largest = batch_size / gradient_ranges;
  std::vector<uint32_t> sizes;
  for (uint32_t size = 1; size <= largest; ++size) {
    if (largest % size != 0 || (size < largest && batch_size / size > kMicrobatchesMax)) continue;
    // Twice as large, or nearly; what is in between would differ little.
    if (sizes.empty() || size >= 1.9 * sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

bool Job::may_have_empty_steps() const {
  // Bytes of a text are labels from 0 on.
  const bool is_text = train && std::holds_alternative<data::TextSpec>(*train);
  return task == Task::Train && std::all_of(losses.begin(), losses.end(), [&](const dag::LossSpec& loss) {
           if (!loss.sample_weights.empty()) return true;
           const bool ignores = loss.ignore_index && (!is_text || *loss.ignore_index >= 0);
           const bool weighs = std::any_of(loss.class_weights.begin(), loss.class_weights.end(),
                                           [](double weight) { return weight == 0; });
           return loss.type == dag::LossType::Output || ignores || weighs;
         });
}

Job Job::with_microbatch_size(uint32_t size) const {
  Job job = *this;
  job.microbatch_size = size;
  return job;
}

std::vector<std::string> Job::columns() const {
  std::set<std::string> names;
  for (const auto& [input, column] : inputs) names.insert(column);
  for (const dag::LossSpec& loss : losses)
    for (const std::string* name : {&loss.target, &loss.sample_weights})
      if (!name->empty()) names.insert(*name);
  return {names.begin(), names.end()};
}

std::string Job::loss_path(size_t term) const {
  return locations.contains("loss[0]") ? "loss[" + std::to_string(term) + "]" : "loss";
}

Location Job::where(std::string_view path) const {
  for (;;) {
    const auto found = locations.find(path);
    if (found != locations.end()) return found->second;
    if (path.empty()) return {source, 0, 0, false};
    const size_t dot = path.find_last_of(".[");  // a map's key, or a list's item
    path = dot == std::string_view::npos ? std::string_view{} : path.substr(0, dot);
  }
}

Error Job::error(ErrorCode code, std::string_view path, const std::string& what) const {
  return {code, to_string(where(path)) + ": " + what};
}

Result<uint64_t> Job::total_steps(uint64_t sample_count) const {
  if (steps) return *steps;
  const auto count = data::steps_of_epochs(epochs.value_or(0), sample_count, batch_size);
  if (count && *count > 0 && *count <= kStepsMax) return *count;
  const std::string product =
      std::to_string(epochs.value_or(0)) + " x " + std::to_string(sample_count) + " samples";
  if (count == uint64_t{0})
    return fail(error(ErrorCode::OutOfRange, "epochs",
                      product + " are " + std::to_string(epochs.value_or(0) * sample_count) +
                          ", and a step takes a batch of " + std::to_string(batch_size) +
                          ": that is not even one step; set batch_size to " +
                          std::to_string(epochs.value_or(0) * sample_count) +
                          " or less, or say more epochs"));
  return fail(error(ErrorCode::OutOfRange, "epochs",
                    product + " are too many steps of " + std::to_string(batch_size) +
                        "; change `epochs` or `batch_size`"));
}

Result<Job> parse_job(std::string_view text, std::span<const std::string> sets, const ParseOptions& options) {
  WEFT_TRY(Node tree, parse_yaml(text, options.source));
  for (const std::string& set : sets) WEFT_TRY_STATUS(apply_set(tree, set));
  return read_job(tree, options);
}

Result<Job> parse_job(std::string_view text, std::span<const std::string> sets, AskedKeys& asked) {
  WEFT_TRY(Node tree, parse_yaml(text, "example"));
  for (const std::string& set : sets) WEFT_TRY_STATUS(apply_set(tree, set));
  return read_job(tree, {.source = "example", .folder = {}, .check_files = false}, &asked);
}

Result<Job> load_job(const std::filesystem::path& path, std::span<const std::string> sets) {
  WEFT_TRY_STATUS(data::check_is_job(path));
  WEFT_TRY(const auto file, data::File::open(path));
  if (file->size() > kYamlSizeMax)
    return file->error(ErrorCode::ResourceExhausted,
                       "larger than a job file may be (" + std::to_string(kYamlSizeMax) + " bytes)");
  std::string text(static_cast<size_t>(file->size()), '\0');
  WEFT_TRY_STATUS(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return parse_job(text, sets, {.source = path.string(), .folder = path.parent_path()});
}

}  // namespace weft::configs
