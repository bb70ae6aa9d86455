#include "train/resumption.h"

#include <array>
#include <charconv>
#include <variant>

#include "base/shortest.h"
#include "dag/optimizer.h"
#include "dag/state.h"
#include "data/dataset.h"
#include "storage/sha256.h"
#include "train/outer_record.h"

namespace weft::train {
namespace {

constexpr const char* kDataKey = "data.train";  // its bytes; how they are read stands beneath it
constexpr const char* kModelKey = "model";      // what of it is not trained
constexpr size_t kWordsMax = 500;               // of one setting

std::string text_of(double number) { return shortest(number); }
std::string text_of(bool flag) { return flag ? "true" : "false"; }

// People's names in a manifest, which is UTF-8 and of bounded size: what is long or strange is told by its
// hash.
std::string words(const std::string& text) {
  bool plain = text.size() <= kWordsMax;
  for (const char c : text) plain = plain && c >= 0x20 && c < 0x7F;
  return plain ? text : "sha256 " + storage::sha256_hex(text);
}

void add_optimizer(const dag::OptimizerSpec& spec, std::map<std::string, std::string>& values) {
  static constexpr std::array kNames{"sgd", "adam", "adamw"};
  values["optimizer.type"] = kNames.at(static_cast<size_t>(spec.type));
  values["optimizer.learning_rate"] = text_of(spec.learning_rate);
  values["optimizer.weight_decay"] = text_of(spec.weight_decay);
  values["optimizer.momentum"] = text_of(spec.momentum);
  values["optimizer.dampening"] = text_of(spec.dampening);
  values["optimizer.nesterov"] = text_of(spec.nesterov);
  values["optimizer.betas"] = "[" + text_of(spec.beta1) + ", " + text_of(spec.beta2) + "]";
  values["optimizer.epsilon"] = text_of(spec.epsilon);
  if (spec.slots == dag::SlotType::Int8) values["optimizer.slots"] = "int8";
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const dag::ParameterGroup& group = spec.groups[i];
    std::string names;
    for (const std::string& pattern : group.parameters) names += (names.empty() ? "" : ", ") + pattern;
    values["optimizer.groups[" + std::to_string(i) + "]"] =
        words("{parameters: [" + names + "]" +
              (group.weight_decay ? ", weight_decay: " + text_of(*group.weight_decay) : "") +
              ", learning_rate_factor: " + text_of(group.learning_rate_factor) + "}");
  }
}

void add_schedule(const dag::ScheduleSpec& spec, std::map<std::string, std::string>& values) {
  static constexpr std::array kNames{"constant", "linear", "cosine"};
  values["schedule.type"] = kNames.at(static_cast<size_t>(spec.type));
  values["schedule.warmup_steps"] = std::to_string(spec.warmup_steps);
  values["schedule.final"] = text_of(spec.final_fraction);
}

std::string text_of(const std::vector<double>& list) {
  std::string text;
  for (const double number : list) text += (text.empty() ? "" : ", ") + text_of(number);
  return "[" + text + "]";
}

void add_transform(const std::string& column, const data::Transform& transform,
                   std::map<std::string, std::string>& values) {
  values["data.train.columns." + words(column)] =
      words("{scale: " + text_of(transform.scale) + ", mean: " + text_of(transform.mean) +
            ", deviation: " + text_of(transform.deviation) + ", flip: " + text_of(transform.flip) +
            ", crop: " + std::to_string(transform.crop) + "}");
}

void add_documents(const data::JsonlSpec& jsonl, std::map<std::string, std::string>& values) {
  values["data.train.sequence_length"] = std::to_string(jsonl.sequence_length);
  values["data.train.validation"] = text_of(jsonl.validation);
  values["data.train.pack"] = jsonl.packing == data::JsonlSpec::Packing::None     ? "none"
                              : jsonl.packing == data::JsonlSpec::Packing::Across ? "across"
                                                                                  : "apart";
  values["data.train.chat_template"] = words(jsonl.chat_template);
  values["data.train.end"] = words(jsonl.end);
  std::string fields;
  for (const std::string& field : jsonl.fields) fields += (fields.empty() ? "" : ", ") + field;
  values["data.train.fields"] = words(fields);
}

void add_reading(const data::DataSpec& spec, std::map<std::string, std::string>& values) {
  if (const auto* idx = std::get_if<data::IdxSpec>(&spec)) {
    values["data.train.scale"] = text_of(idx->scale);
    values["data.train.mean"] = text_of(idx->mean);
    values["data.train.deviation"] = text_of(idx->deviation);
  } else if (const auto* text = std::get_if<data::TextSpec>(&spec)) {
    values["data.train.sequence_length"] = std::to_string(text->sequence_length);
    values["data.train.validation"] = text_of(text->validation);
    if (text->token_bytes > 1) values["data.train.dtype"] = "uint" + std::to_string(8 * text->token_bytes);
  } else if (const auto* jsonl = std::get_if<data::JsonlSpec>(&spec)) {
    add_documents(*jsonl, values);
  } else if (const auto* images = std::get_if<data::ImagesSpec>(&spec)) {
    values["data.train.size"] = std::to_string(images->size);
    values["data.train.resize"] = std::to_string(images->kept());
    add_transform("image", images->image, values);
  }
  const auto add = [&](const auto& one) {
    for (const auto& [column, transform] : one->transforms) add_transform(column, transform, values);
  };
  if (const auto* npz = std::get_if<data::NpzSpec>(&spec)) add(npz);
  if (const auto* npy = std::get_if<data::NpySpec>(&spec)) add(npy);
  if (const auto* csv = std::get_if<data::CsvSpec>(&spec)) add(csv);
}

// Which column is what.
void add_columns(const configs::Job& job, std::map<std::string, std::string>& values) {
  std::string inputs;
  for (const auto& [input, column] : job.inputs)
    inputs += (inputs.empty() ? "" : ", ") + input + ": " + column;
  values["inputs"] = words("{" + inputs + "}");
  std::string targets;
  for (const dag::LossSpec& loss : job.losses) targets += (targets.empty() ? "" : ", ") + loss.target;
  values["loss.target"] = words(targets);
  std::string weights;
  for (const dag::LossSpec& loss : job.losses)
    if (!loss.sample_weights.empty()) weights += (weights.empty() ? "" : ", ") + loss.sample_weights;
  if (!weights.empty()) values["loss.sample_weights"] = words(weights);
}

std::string changed(const std::string& key, const std::string& then, const std::string& now) {
  const auto said = [](const std::string& value) { return value.empty() ? std::string("not set") : value; };
  return "`" + key + "` was " + said(then) + " and is " + said(now);
}

// Four digits: for people.
std::string rate_text(double rate) {
  std::array<char, 32> buffer{};
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), rate, std::chars_format::general, 4);
  return {buffer.data(), end};
}
std::string describe_rate(double then, double next) {
  if (then == next) return "the learning rate stays " + rate_text(next);
  return "the learning rate was " + rate_text(then) + " in the checkpoint's last step and is " +
         rate_text(next) + " in the next";
}

}  // namespace

Result<std::string> hash_of_data(const data::DataSpec& spec) {
  WEFT_TRY(const std::vector<std::filesystem::path> files, data::files_of(spec));
  storage::Sha256 all;
  for (const auto& file : files) {
    WEFT_TRY(const std::string hash, storage::sha256_of_file(file));
    all.update(hash);
    // A photo's folder is its label.
    if (const auto* images = std::get_if<data::ImagesSpec>(&spec))
      all.update(file.lexically_relative(images->path).generic_string());
  }
  return all.hex();
}

storage::RunSettings settings_of(const configs::Job& job, uint64_t steps, const ReadHashes& read,
                                 uint64_t step) {
  storage::RunSettings settings;
  auto& values = settings.values;
  values["steps"] = std::to_string(steps);
  values["seed"] = std::to_string(job.seed);
  values["shuffle"] = text_of(job.shuffle);
  values["clip_norm"] = text_of(job.clip_norm);
  values["on_divergence"] = job.on_divergence == dag::OnDivergence::Skip ? "skip" : "stop";
  values["gradient_ranges"] = std::to_string(job.gradient_ranges);
  if (job.replicas.are_local()) {
    values["replicas"] = std::to_string(job.replicas.count);
    values["sync"] = words(describe_sync(job.replicas));
  }
  add_optimizer(job.optimizer, values);
  add_schedule(job.schedule, values);
  add_columns(job, values);
  values[kDataKey] = read.data;
  values[kModelKey] = read.untrained;
  if (job.train) add_reading(*job.train, values);
  settings.learning_rate =
      dag::scheduled_learning_rate(job.schedule, job.optimizer.learning_rate, step, steps);
  return settings;
}

bool has_same_data(const storage::RunSettings& then, const storage::RunSettings& now) {
  const auto a = then.values.find(kDataKey), b = now.values.find(kDataKey);
  const bool is_known = a != then.values.end() && !a->second.empty();
  return !is_known || (b != now.values.end() && a->second == b->second);
}

namespace {

// What a checkpoint does not hold is the job's: where that is another, the run is not the one it was.
Result<std::vector<std::string>> compare_settings(const Continuation& run,
                                                  const storage::Checkpoint& checkpoint,
                                                  const std::string& manifest,
                                                  const std::function<ReadHashes()>& read) {
  if (!checkpoint.settings)
    return std::vector{manifest +
                       " was written by an older weft and does not say which data, steps, schedule, "
                       "optimizer, seed and order it was made with: whether they are the same is not known"};
  const configs::Job& job = run.job;
  const storage::RunSettings now = settings_of(job, run.steps, read(), checkpoint.step);
  if (!has_same_data(*checkpoint.settings, now) && !run.takes_other_data)
    return fail(job.error(ErrorCode::InvalidArgument, "data.train",
                          manifest + " was made with other data than these; give it the same ones, or say "
                                     "--other-data to go on with these"));
  const uint64_t next = std::min(checkpoint.step + 1, run.steps);
  const std::string changes = describe_changes(
      *checkpoint.settings, now,
      dag::scheduled_learning_rate(job.schedule, job.optimizer.learning_rate, next, run.steps));
  if (changes.empty()) return std::vector<std::string>{};
  return std::vector{"the job is another than that of " + manifest + ": " + changes};
}

// What stands in the one cannot be read as the other, and made again it would be other bits.
Status check_slots(const configs::Job& job, const storage::Checkpoint& checkpoint,
                   const std::string& manifest) {
  const bool are_coded = job.optimizer.slots == dag::SlotType::Int8;
  for (const auto& [key, tensor] : checkpoint.tensors)
    for (const dag::StateSlot slot : optimizer_slots(job.optimizer))
      if (key.slot == slot && (tensor.dtype() == dag::DType::U8) != are_coded)
        return fail(job.error(ErrorCode::InvalidArgument, "optimizer.slots",
                              manifest + " has the optimizer's slots as " + (are_coded ? "float32" : "int8") +
                                  ", and the job as " + (are_coded ? "int8" : "float32") +
                                  "; go on with optimizer.slots: " + (are_coded ? "float32" : "int8")));
  return {};
}

}  // namespace

Result<std::vector<std::string>> check_continuation(const Continuation& run,
                                                    const storage::Checkpoint& checkpoint,
                                                    const std::string& manifest,
                                                    const std::function<ReadHashes()>& read) {
  const configs::Job& job = run.job;
  if (checkpoint.graph_hash != run.graph_hash)
    return fail(ErrorCode::InvalidArgument,
                manifest + " is of another model, loss, freeze list or microbatch size than " + job.source);
  WEFT_TRY_STATUS(check_slots(job, checkpoint, manifest));
  if (checkpoint.data_position != checkpoint.step * job.batch_size)
    return fail(ErrorCode::InvalidArgument,
                manifest + " was made with another batch_size than " + job.source);
  if (checkpoint.step > run.steps)
    return fail(job.error(ErrorCode::InvalidArgument, job.steps ? "steps" : "epochs",
                          manifest + " is after step " + std::to_string(checkpoint.step) +
                              ", and the job ends after step " + std::to_string(run.steps) +
                              ": nothing is left to train; --set steps=" + std::to_string(checkpoint.step) +
                              " writes what it holds"));
  return compare_settings(run, checkpoint, manifest, read);
}

std::string describe_changes(const storage::RunSettings& then, const storage::RunSettings& now,
                             double next_rate) {
  std::map<std::string, std::pair<std::string, std::string>> both;
  for (const auto& [key, value] : then.values) both[key].first = value;
  for (const auto& [key, value] : now.values) both[key].second = value;
  std::string text;
  bool changes_rate = false;
  for (const auto& [key, values] : both) {
    const bool is_hash = key == kDataKey || key == kModelKey;
    if (values.first == values.second || (is_hash && (values.first.empty() || values.second.empty())))
      continue;
    text += text.empty() ? "" : ", ";
    changes_rate =
        changes_rate || key == "steps" || key.starts_with("schedule.") || key.starts_with("optimizer.");
    if (key == kDataKey)
      text += "the data of `data.train` are others";
    else if (key == kModelKey)
      text += "weights of `model` that are not trained are others";
    else
      text += changed(key, values.first, values.second);
  }
  return changes_rate ? text + "; " + describe_rate(then.learning_rate, next_rate) : text;
}

}  // namespace weft::train
