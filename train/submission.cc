#include "train/submission.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "configs/job_data.h"
#include "dag/onnx/outline.h"
#include "dag/onnx/pack.h"
#include "data/dataset.h"
#include "data/file.h"
#include "data/kinds.h"
#include "peer/backend/reference/reference_kernels.h"
#include "train/adapter_files.h"
#include "train/data_check.h"
#include "train/decoder.h"
#include "train/loss_warnings.h"
#include "train/outer_record.h"
#include "train/outputs.h"
#include "train/plan_request.h"
#include "train/prepare.h"

namespace weft::train {
namespace fs = std::filesystem;

using configs::Entry;
using configs::Job;
using configs::Node;

namespace {

Node text_node(std::string text) {
  Node node;
  node.kind = Node::Kind::Scalar;
  node.text = std::move(text);
  node.quoted = true;
  return node;
}

Entry* find(Node& map, std::string_view key) {
  const auto at =
      std::find_if(map.entries.begin(), map.entries.end(), [&](const Entry& e) { return e.key == key; });
  return at == map.entries.end() ? nullptr : &*at;
}

// A file's own name, without what would mean something else in a path on another system.
std::string plain_name(const fs::path& file) {
  std::string name = file.filename().string();
  for (char& c : name)
    if (c == '\\' || static_cast<unsigned char>(c) < 0x20) c = '_';
  return name;
}

// What the values of a model's large weights tell, found as the bytes of its files pass by.
class WeightWatch {
 public:
  explicit WeightWatch(const onnx::OnnxModel& model) : model_(model) {
    for (const auto& [name, tensor] : model.weights())
      if (const auto place = model.place_of(name); place && is_float(tensor.dtype()))
        at_[{plain(place->location), static_cast<uint64_t>(place->offset)}] = {name, tensor.spec()};
  }

  // `location`: of a file beside the model; empty: the model's own.
  storage::ObserveRange watch(const std::string& location) {
    return [this, location = plain(location)](const storage::Range& range, std::span<const std::byte> bytes) {
      const auto found = at_.find({location, range.offset});
      if (found == at_.end() || static_cast<uint64_t>(found->second.spec.bytes().value) != range.size) return;
      if (!reader_ || reading_ != found->second.name) {
        reading_ = found->second.name;
        reader_.emplace(found->second.spec);
        left_ = range.size;
      }
      reader_->add(bytes);
      left_ -= bytes.size();
      if (left_ == 0) traits_[reading_] = std::exchange(reader_, std::nullopt)->traits();
    };
  }

  // The model with all of it. Weights that lie across what the files were cut into are read once more.
  Result<onnx::OnnxModel> learnt() {
    for (const auto& [place, weight] : at_) {
      if (traits_.contains(weight.name)) continue;
      onnx::ValueReader reader(weight.spec);
      WEFT_TRY_STATUS(model_.read_weight(weight.name, [&](std::span<const std::byte> bytes) -> Status {
        reader.add(bytes);
        return {};
      }));
      traits_[weight.name] = reader.traits();
    }
    return with_traits(model_, std::move(traits_));
  }

 private:
  struct Weight {
    std::string name;
    dag::TensorSpec spec;
  };
  static std::string plain(const std::string& location) {
    return fs::path(location).lexically_normal().generic_string();
  }

  const onnx::OnnxModel& model_;
  std::map<std::pair<std::string, uint64_t>, Weight> at_;  // by file and offset
  std::map<std::string, onnx::ValueTraits> traits_;
  std::string reading_;
  std::optional<onnx::ValueReader> reader_;
  uint64_t left_ = 0;
};

class Packer {
 public:
  Packer(const OpenedJob& opened, WeightWatch& weights)
      : opened_(opened), weights_(weights), tree_(opened.tree) {}

  Result<Submission> run() {
    const Job& job = opened_.job;
    submission_.name = name_of(job.source);
    submission_.stages = job.placement.stages.value_or(0);
    submission_.excluded = job.placement.exclude;
    WEFT_TRY_STATUS(add_model());
    WEFT_TRY_STATUS(add_data());
    WEFT_TRY_STATUS(add_adapters());
    if (job.task == configs::Task::Serve) {
      WEFT_TRY_STATUS(add_text());
      WEFT_TRY_STATUS(add_draft());
    } else {  // whoever fetches the result says where it goes
      set(tree_, "output", text_node(job.task == configs::Task::Train ? "trained.onnx" : "predictions.npz"));
    }
    // Only one of them counts: which, the command line may have decided.
    if (job.steps) erase("epochs");
    if (job.epochs) erase("steps");
    submission_.job = to_yaml(tree_);
    const auto again =
        configs::parse_job(submission_.job, {}, {.source = job.source, .folder = {}, .check_files = false});
    if (!again) return fail(again.error().within("the job cannot be written out again"));
    return std::move(submission_);
  }

 private:
  static void set(Node& map, std::string_view key, Node value) {
    if (Entry* entry = find(map, key))
      entry->value = std::move(value);
    else
      map.entries.push_back({std::string(key), {}, std::move(value)});
  }
  void erase(std::string_view key) {
    std::erase_if(tree_.entries, [&](const Entry& entry) { return entry.key == key; });
  }

  template <typename Ranges>
  Status add(const std::string& path, const fs::path& file, const Ranges& ranges,
             const storage::ObserveRange& observe = {}) {
    std::vector<storage::Range> cut;
    cut.reserve(ranges.size());
    for (const auto& range : ranges) cut.push_back({.offset = range.offset, .size = range.size});
    WEFT_TRY(storage::Packed packed, storage::pack(file, cut, observe));
    submission_.files.push_back({path, std::move(packed.pieces)});
    submission_.blobs.merge(packed.blobs);
    return {};
  }

  Status add_model() {
    const auto watch = [this](const std::string& location) { return weights_.watch(location); };
    WEFT_TRY(const std::string path, add_onnx("model", opened_.job.model, "model", watch));
    set(tree_, "model", text_node(path));
    return {};
  }

  // With what it keeps outside, each part that `watch` gives a watcher for.
  using Watch = std::function<storage::ObserveRange(const std::string& location)>;
  Result<std::string> add_onnx(const std::string& folder, const fs::path& model, std::string_view key,
                               const Watch& watch) {
    std::string path = folder + "/" + plain_name(model);
    WEFT_TRY(const auto ranges, onnx::tensor_ranges(model));
    WEFT_TRY_STATUS(add(path, model, ranges, watch("")));
    WEFT_TRY(const auto external, onnx::list_external_files(model));
    for (const onnx::ExternalFile& file : external) {
      const std::string target = folder + "/" + file.location;
      if (target == path)
        return fail(opened_.job.error(ErrorCode::Unsupported, key,
                                      "the model names itself as the file of its external data"));
      WEFT_TRY_STATUS(add(target, model.parent_path() / file.location, file.tensors, watch(file.location)));
    }
    return path;
  }

  Status add_draft() {
    const configs::DraftTerms& draft = opened_.job.serve->draft;
    if (draft.kind != plan::DraftKind::Decoder) return {};
    const auto unwatched = [](const std::string&) { return storage::ObserveRange{}; };
    WEFT_TRY(const std::string path, add_onnx("draft", draft.file, "serve.draft", unwatched));
    set(find(tree_, "serve")->value, "draft", text_node(path));
    return {};
  }

  Status add_data() {
    Entry* data = find(tree_, "data");
    if (data == nullptr) return {};
    // What is kept from training is no entry of the job; where it does not lie in a file that travels, it is.
    const data::DataSpec* test = spec_of("test");
    if (test != nullptr && find(data->value, "test") == nullptr && !data::travels_as_it_is(*test))
      set(data->value, "test", Node());
    for (Entry& role : data->value.entries) {
      const data::DataSpec* spec = spec_of(role.key);
      if (spec != nullptr && !data::travels_as_it_is(*spec)) {
        WEFT_TRY(role.value, add_made(role.key, *spec));
        continue;
      }
      for (const char* key : {"path", "images", "labels"})
        if (Entry* entry = find(role.value, key)) {
          WEFT_TRY(std::string path, add_data_file(role.key, key, entry->value));
          entry->value = text_node(std::move(path));
        }
    }
    return {};
  }

  const data::DataSpec* spec_of(std::string_view role) const {
    const Job& job = opened_.job;
    const auto& spec = role == "train" ? job.train : role == "test" ? job.test : job.predict;
    return spec ? &*spec : nullptr;
  }

  // As an npz, and how the job reads that.
  Result<Node> add_made(const std::string& role, const data::DataSpec& spec) {
    const std::string path = "data/" + role + "/" + role + ".npz";
    WEFT_TRY(const auto file, make_npz(spec));
    submission_.made.push_back(file);
    WEFT_TRY_STATUS(add_whole(path, file->path()));
    return npz_node(spec, path);
  }

  // What the model speaks: also where it was found beside the model, and the job says nothing of it.
  Status add_text() {
    WEFT_TRY(const DecoderText text, find_text(opened_.job));
    Node& serve = find(tree_, "serve")->value;
    if (!text.chat_template.empty()) set(serve, "chat_template", text_node(text.chat_template));
    if (text.tokenizer.empty()) return {};
    const std::string path = "tokenizer/" + plain_name(text.tokenizer);
    WEFT_TRY_STATUS(add_whole(path, text.tokenizer));
    set(serve, "tokenizer", text_node(path));
    return {};
  }

  // Files that adapters begin with.
  Status add_adapters() {
    Entry* adapters = find(tree_, "adapters");
    const bool is_list = adapters != nullptr && adapters->value.kind == Node::Kind::Sequence;
    for (const configs::AdapterEntry& entry : opened_.job.adapters) {
      if (entry.file.empty()) continue;
      const std::string path = "adapters/" + std::to_string(sources_.size()) + "-" + plain_name(entry.file);
      sources_[path] = entry.file;
      WEFT_TRY_STATUS(add_whole(path, entry.file));
      set(is_list ? adapters->value.items[entry.index] : adapters->value, "init", text_node(path));
    }
    return {};
  }

  // In one piece.
  Status add_whole(const std::string& path, const fs::path& file) {
    WEFT_TRY(const auto opened, data::File::open(file));
    const std::vector<storage::Range> whole{{.offset = 0, .size = opened->size()}};
    return add(path, file, opened->size() == 0 ? std::vector<storage::Range>{} : whole);
  }

  // "data/<role>/<file name>". Equal names from different folders are told apart, equal files travel once.
  Result<std::string> add_data_file(const std::string& role, const std::string& key, const Node& named) {
    const fs::path file = configs::PathRules{opened_.folder}.resolve(named.text, named.where);
    std::string path = "data/" + role + "/" + plain_name(file);
    if (const auto at = sources_.find(path); at != sources_.end()) {
      if (at->second == file) return path;
      path = "data/" + role + "/" + key + "-" + plain_name(file);
    }
    sources_[path] = file;
    WEFT_TRY_STATUS(add_whole(path, file));
    return path;
  }

  const OpenedJob& opened_;
  WeightWatch& weights_;
  Node tree_;
  Submission submission_;
  std::map<std::string, fs::path> sources_;
};

// Which parameters are trained and which are frozen, as the executor counts them.
void count_parameters(const dag::Graph& graph, StartEvent& event) {
  std::set<std::string> trained;
  for (const auto& output : graph.outputs())
    if (output.role == dag::OutputRole::Gradient) trained.insert(output.name);
  for (const dag::Initializer& initializer : graph.initializers()) {
    event.frozen_tensors += initializer.role == dag::InitializerRole::Frozen;
    if (!trained.contains(initializer.name)) continue;
    ++event.parameter_tensors;
    event.parameter_elements += graph.spec(initializer.value).element_count();
  }
}

// A job's graphs, and the data that they were matched with.
struct Checked {
  Job job;  // its size of microbatches settled
  StartEvent event;
  std::unique_ptr<data::Dataset> dataset, test;
  Prepared main;
  std::optional<Prepared> evaluation;
};

void add_text_file(std::string path, const std::string& text, Submission& submission) {
  const auto bytes = std::as_bytes(std::span(text));
  submission.files.push_back(
      {std::move(path), {{.bytes = {bytes.begin(), bytes.end()}, .sha256 = {}, .size = bytes.size()}}});
}

// With the size of microbatches that it says.
Result<Checked> check_prepared(const Job& job, const onnx::OnnxModel& model, const data::OpenOptions& open) {
  Checked checked;
  checked.job = job;
  checked.event.batch_size = job.batch_size;
  const bool trains = job.task == configs::Task::Train;
  WEFT_TRY(checked.dataset, data::open_dataset(trains ? *job.train : *job.predict, open));
  checked.event.sample_count = checked.dataset->sample_count();
  if (!trains) {
    WEFT_TRY(checked.main, prepare_prediction(job, model, *checked.dataset, peer::evaluate_reference));
    return checked;
  }
  WEFT_TRY(checked.event.steps, job.total_steps(checked.dataset->sample_count()));
  WEFT_TRY(checked.main, prepare_training(job, model, *checked.dataset, peer::evaluate_reference));
  WEFT_TRY_STATUS(check_agreed(job, checked.main.graph));
  count_parameters(checked.main.graph, checked.event);
  if (job.test) {
    WEFT_TRY(checked.test, data::open_dataset(*job.test, open));
    WEFT_TRY(checked.evaluation, prepare_evaluation(job, model, *checked.test, peer::evaluate_reference));
  }
  return checked;
}

// What the data itself has wrong with it.
Result<StartEvent> look_at_data(Checked checked) {
  std::vector<std::string>& warnings = checked.event.warnings;
  warnings = checked.main.warnings;
  checked.event.notes = checked.main.notes;
  const auto add = [&](const std::vector<std::string>& more) {
    warnings.insert(warnings.end(), more.begin(), more.end());
  };
  const bool trains = checked.job.task == configs::Task::Train;
  WEFT_TRY(const auto said, check_data(checked.job, trains ? DataUse::Train : DataUse::Predict,
                                       *checked.dataset, checked.main));
  add(said);
  if (trains) add(sample_notes(checked.job, checked.dataset->sample_count()));
  if (checked.evaluation) {
    WEFT_TRY(const auto of_test, check_data(checked.job, DataUse::Test, *checked.test, *checked.evaluation));
    add(of_test);
    add(test_notes(checked.job, *checked.evaluation, checked.test->sample_count()));
  }
  return std::move(checked.event);
}

Result<Checked> check_with(const Job& job, const onnx::OnnxModel& model, const data::OpenOptions& open = {}) {
  WEFT_TRY_STATUS(check_for_peers(job));
  std::vector<uint32_t> sizes{job.microbatch_size};
  if (job.microbatch_size == 0) {
    WEFT_TRY(sizes, microbatch_sizes(job, model));
  }
  // Where the size is open one that can be prepared is enough: the planner passes over the others.
  Result<Checked> checked = check_prepared(job.with_microbatch_size(sizes.back()), model, open);
  for (size_t i = 0; !checked && i + 1 < sizes.size(); ++i)
    if (auto other = check_prepared(job.with_microbatch_size(sizes[i]), model, open)) return other;
  return checked;
}

Result<onnx::OnnxModel> open_of(const Job& job, const fs::path& file, std::string_view key) {
  auto model = onnx::open_model(file);
  if (!model) return fail(job.error(model.error().code, key, model.error().message));
  return model;
}

Result<onnx::OnnxModel> model_of(const Job& job) { return open_of(job, job.model, "model"); }

bool is_all_read(const onnx::OnnxModel& model) {
  return std::all_of(model.weights().begin(), model.weights().end(),
                     [&](const auto& weight) { return model.is_read(weight.first); });
}

// As a broker's planner takes it apart, and what it speaks.
Result<StartEvent> check_served(const Job& job, const onnx::OnnxModel& model) {
  WEFT_TRY(const ServedDecoder decoder, open_decoder(job, model));
  WEFT_TRY(const DecoderText text, find_text(job));
  std::optional<std::string> tokenizer;
  if (!text.tokenizer.empty()) {
    WEFT_TRY(tokenizer, read_tokenizer(text.tokenizer));
  }
  WEFT_TRY_STATUS(check_text(job, tokenizer ? &*tokenizer : nullptr, decoder.parts->logits().width));
  StartEvent event;
  event.warnings = decoder.model.warnings;
  if (const configs::DraftTerms& terms = job.serve->draft; terms.kind == plan::DraftKind::Decoder) {
    WEFT_TRY(const onnx::OnnxModel file, open_of(job, terms.file, "serve.draft"));
    WEFT_TRY(const auto draft, open_draft(job, file, decoder));
    const std::vector<std::string>& more = draft->model.warnings;
    event.warnings.insert(event.warnings.end(), more.begin(), more.end());
  }
  for (const dag::Initializer& initializer : decoder.model.graph->initializers()) {
    ++event.parameter_tensors;
    event.parameter_elements += decoder.model.graph->spec(initializer.value).element_count();
  }
  return event;
}

}  // namespace

Result<StartEvent> check_job(const Job& job) {
  WEFT_TRY(const onnx::OnnxModel model, model_of(job));
  if (job.task == configs::Task::Serve) return check_served(job, model);
  WEFT_TRY(Checked checked, check_with(job, model));
  return look_at_data(std::move(checked));
}

Result<ReadyJob> ready_job(const OpenedJob& opened, const ResumeOptions& resume) {
  const Job& job = opened.job;
  if (!resume.checkpoint.empty() && job.task != configs::Task::Train)
    return fail(job.error(ErrorCode::InvalidArgument, "task", "--resume is for a job with `task: train`"));
  WEFT_TRY(const onnx::OnnxModel model, model_of(job));
  if (job.task == configs::Task::Serve) {
    ReadyJob ready;
    WEFT_TRY(ready.start, check_served(job, model));
    WeightWatch passing(model);
    WEFT_TRY(ready.submission, Packer(opened, passing).run());
    return ready;
  }
  // Before gigabytes are read for a job that cannot run.
  if (!is_all_read(model)) WEFT_TRY_STATUS(check_with(job, model));
  WeightWatch weights(model);
  ReadyJob ready;
  WEFT_TRY(ready.submission, Packer(opened, weights).run());
  WEFT_TRY(const onnx::OnnxModel learnt, weights.learnt());
  // Photos were decoded as they were packed.
  WEFT_TRY(Checked checked, check_with(job, learnt, {.checks_photos = false}));
  if (!resume.checkpoint.empty()) {
    WEFT_TRY(ready.beginning, read_beginning(resume, checked.job, checked.main, checked.event.steps));
    ready.submission.blobs.insert(ready.beginning->blobs.begin(), ready.beginning->blobs.end());
  }
  if (!checked.main.adapters.empty())
    add_text_file(std::string(kTravellingAdapters), to_json(checked.main.adapters), ready.submission);
  if (job.replicas.are_local())
    add_text_file(std::string(kTravellingRecord), storage::to_text(record_of(job, std::string())),
                  ready.submission);
  WEFT_TRY(ready.start, look_at_data(std::move(checked)));
  const onnx::RoleOptions asked{
      .train = job.trained, .freeze = job.freeze, .spare = job.spared, .read = values_read(job.losses)};
  if (ready.beginning) {
    ready.start.first_step = ready.beginning->step + 1;
    ready.start.warnings.insert(ready.start.warnings.end(), ready.beginning->warnings.begin(),
                                ready.beginning->warnings.end());
  }
  WEFT_TRY(ready.submission.tensors, judge_roles(learnt, asked, look_at(learnt)));
  return ready;
}

}  // namespace weft::train
