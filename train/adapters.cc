#include "train/adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/glob.h"
#include "base/shortest.h"
#include "configs/rename.h"
#include "dag/onnx/stored_weights.h"
#include "dag/op_table.h"
#include "train/adapter_files.h"

namespace weft::train {
namespace {

using configs::AdapterBegin;
using configs::AdapterEntry;
using configs::Job;

// As PEFT begins them.
void begin(const PlacedAdapter& adapter, const dag::Shape& weight, AdapterBegin how, uint64_t seed,
           std::map<std::string, dag::MadeValue>& made) {
  const bool is_table = adapter.form == dag::Adapter::Form::Table;
  made[adapter.a()] = made[adapter.b()] = {};
  if (how == AdapterBegin::Zero) return;
  dag::MadeValue& drawn = made[is_table ? adapter.b() : adapter.a()];
  drawn.seed = seed;
  if (how == AdapterBegin::Normal)
    drawn.deviation = 1 / static_cast<double>(adapter.rank);
  else if (is_table)
    drawn.deviation = 1;
  else
    drawn.bound = 1 / std::sqrt(static_cast<double>(dag::a_spec(adapter, weight).shape[1]));
}

// What an exporter in inference mode renames is known by the node: "/h.0/attn/c_attn/MatMul".
std::string module_of(const dag::Adapter& adapter, const AdapterEntry& entry) {
  std::string module = adapter.weight;
  const size_t last = adapter.node.rfind('/');
  if (module.starts_with("onnx::") && adapter.node.starts_with('/') && last > 0) {
    module = adapter.node.substr(1, last - 1);
    std::replace(module.begin(), module.end(), '/', '.');
  }
  constexpr std::string_view kWeight = ".weight";
  if (module.ends_with(kWeight)) module.resize(module.size() - kWeight.size());
  for (const auto& [pattern, replacement] : entry.names)
    if (const auto rule = configs::Rename::compile(pattern, replacement)) module = rule->apply(module);
  return module;
}

Status check_modules(const Job& job, const Adapters& adapters) {
  std::set<std::string_view> modules;
  for (const PlacedAdapter& adapter : adapters) {
    if (adapter.module.empty() || !modules.insert(adapter.module).second)
      return fail(job.error(ErrorCode::InvalidArgument, "adapters",
                            "the module of '" + adapter.weight + "' is named '" + adapter.module +
                                "', as another is, or nothing; change `names`"));
    if (std::any_of(job.trained.begin(), job.trained.end(),
                    [&](const std::string& pattern) { return matches_glob(pattern, adapter.weight); }))
      return fail(job.error(
          ErrorCode::InvalidArgument, "adapters",
          "'" + adapter.weight + "' is to be trained whole, and to have an adapter: name it in one entry"));
  }
  return {};
}

// What is said of a pattern that names nothing at all; nothing: it names something.
Status check_targets(const Job& job, const AdapterEntry& entry, const onnx::OnnxModel& model,
                     const dag::Graph& graph) {
  for (size_t i = 0; i < entry.targets.size(); ++i) {
    if (dag::is_target(graph, entry.targets[i])) continue;
    Status found = onnx::check_targets(model, {&entry.targets[i], 1});
    const std::string why =
        found ? "'" + entry.targets[i] + "' names only what the graph does not read" : found.error().message;
    return fail(job.error(ErrorCode::NotFound, entry.path + ".targets[" + std::to_string(i) + "]", why));
  }
  return {};
}

Status add_entry(const Job& job, const AdapterEntry& entry, const onnx::OnnxModel& model, bool trains,
                 onnx::ImportedModel& imported, AddedAdapters& added) {
  WEFT_TRY_STATUS(check_targets(job, entry, model, imported.graph));
  auto adapted = dag::adapt(imported.graph, entry, trains, dag::op_table());
  if (!adapted)
    return fail(job.error(adapted.error().code, entry.path + ".targets", adapted.error().message));
  imported.graph = std::move(adapted->graph);
  Adapters adapters;
  for (const dag::Adapter& adapter : adapted->adapters) {
    const PlacedAdapter& placed = adapters.emplace_back(PlacedAdapter{adapter, module_of(adapter, entry)});
    const dag::Shape& weight =
        imported.graph.spec(imported.graph.find_initializer(adapter.weight)->value).shape;
    begin(placed, weight, entry.begin, job.seed, added.made);
    for (const auto& [name, spec] :
         {std::pair{adapter.a(), dag::a_spec(adapter, weight)}, {adapter.b(), dag::b_spec(adapter, weight)}})
      imported.weights[name] = dag::make_value(added.made.at(name), spec, name);
  }
  if (entry.begin == AdapterBegin::File) {
    const Status taken = take_adapters(entry.file, adapters, job.trained, imported.weights);
    if (!taken) return fail(job.error(taken.error().code, entry.path + ".init", taken.error().message));
    for (const PlacedAdapter& adapter : adapters) {
      added.made.erase(adapter.a());
      added.made.erase(adapter.b());
    }
  }
  if (entry.begin == AdapterBegin::Zero && trains)
    imported.warnings.push_back("adapters that begin with `init: zero` have no gradient, and learn nothing");
  if (!adapted->passed.empty())
    imported.notes.push_back("no adapter stands beside " + adapted->passed.front() +
                             (adapted->passed.size() == 1
                                  ? std::string()
                                  : "; nor beside " + std::to_string(adapted->passed.size() - 1) + " more"));
  added.adapters.insert(added.adapters.end(), adapters.begin(), adapters.end());
  return {};
}

}  // namespace

Result<AddedAdapters> add_adapters(const Job& job, const onnx::OnnxModel& model, bool trains,
                                   onnx::ImportedModel& imported) {
  AddedAdapters added;
  for (const AdapterEntry& entry : job.adapters)
    WEFT_TRY_STATUS(add_entry(job, entry, model, trains, imported, added));
  WEFT_TRY_STATUS(check_modules(job, added.adapters));
  return added;
}

std::string describe(const Adapters& adapters) {
  std::string text;
  for (const PlacedAdapter& adapter : adapters)
    if (adapter.scale() != 1) text += "scale of '" + adapter.a() + "' " + shortest(adapter.scale()) + "\n";
  return text;
}

onnx::TrainedTensors put_over(const onnx::TrainedTensors& under, const onnx::TrainedTensors& over) {
  onnx::TrainedTensors both{.specs = over.specs, .read = {}};
  both.specs.insert(under.specs.begin(), under.specs.end());
  both.read = [under, over](const std::string& name, const onnx::ByteSink& sink) {
    return over.specs.contains(name) ? over.read(name, sink) : under.read(name, sink);
  };
  return both;
}

onnx::TrainedTensors tensors_of(const onnx::OnnxModel& model) {
  onnx::TrainedTensors tensors;
  for (const auto& [name, tensor] : model.weights()) tensors.specs.emplace(name, tensor.spec());
  tensors.read = [model](const std::string& name, const onnx::ByteSink& sink) {
    return model.read_weight(name, sink);
  };
  return put_over(tensors, onnx::widened(model));
}

namespace {

// The dtype in which the file is to have a weight that was merged into; nothing where it has it so.
std::optional<dag::DType> merged_dtype(const onnx::OnnxModel& model, const onnx::StoredWeights& stored,
                                       const std::string& weight, std::optional<dag::DType> asked) {
  const auto at = stored.find(weight);
  const auto plain = model.weights().find(weight);
  if (at == stored.end() && plain == model.weights().end()) return std::nullopt;
  const dag::DType own = at != stored.end() ? at->second.dtype : plain->second.dtype();
  const bool of_integers = at != stored.end() && !at->second.form.matrix.is_half();
  const dag::DType wanted = asked.value_or(of_integers ? dag::DType::F16 : own);
  // What a half is computed with is no wider.
  const dag::DType dtype = own == dag::DType::F32 ? wanted : own;
  if (at == stored.end() && dtype == own) return std::nullopt;
  return dtype;
}

Status check_fits_half(const std::string& weight, std::span<const std::byte> bytes) {
  constexpr float kLargest = 65504;
  for (; bytes.size() >= sizeof(float); bytes = bytes.subspan(sizeof(float))) {
    float number = 0;
    std::memcpy(&number, bytes.data(), sizeof(number));
    if (!(std::abs(number) <= kLargest))
      return fail(ErrorCode::OutOfRange, "'" + weight.substr(0, 128) + "' has a " + shortest(number) +
                                             ", which float16 cannot hold; say `output: {merged: float32}`");
  }
  return {};
}

// By the names that the file has for them.
onnx::TrainedTensors renamed(onnx::TrainedTensors tensors, const onnx::OnnxModel& whole,
                             const std::map<std::string, dag::DType>& dtypes) {
  std::map<std::string, std::string> weight_of;  // by the name of its half
  for (const auto& [weight, dtype] : dtypes) {
    const std::string half = onnx::name_of_half(weight, dtype);
    if (whole.weights().contains(weight) || !whole.weights().contains(half)) continue;
    auto node = tensors.specs.extract(weight);
    if (node.empty()) continue;
    node.key() = half;
    tensors.specs.insert(std::move(node));
    weight_of[half] = weight;
  }
  tensors.read = [read = tensors.read, weight_of, dtypes](const std::string& name,
                                                          const onnx::ByteSink& sink) -> Status {
    const auto at = weight_of.find(name);
    if (at == weight_of.end()) return read(name, sink);
    const bool is_checked = dtypes.at(at->second) == dag::DType::F16;
    return read(at->second, [&](std::span<const std::byte> bytes) -> Status {
      if (is_checked) WEFT_TRY_STATUS(check_fits_half(at->second, bytes));
      return sink(bytes);
    });
  };
  return tensors;
}

Result<onnx::WrittenFiles> write(const onnx::OnnxModel& model, const onnx::TrainedTensors& tensors,
                                 const OutputPlace& place) {
  if (place.form.links_base) return onnx::write_beside(model, place.model_folder, tensors, place.output);
  return onnx::write_trained_tensors(model, tensors, place.output);
}

Result<onnx::WrittenFiles> write_as_asked(const onnx::OnnxModel& model, const Adapters& adapters,
                                          const onnx::TrainedTensors& base,
                                          const onnx::TrainedTensors& trained, const OutputPlace& place) {
  const onnx::StoredWeights stored = onnx::stored_weights(model);
  std::map<std::string, dag::DType> dtypes;
  for (const PlacedAdapter& adapter : adapters)
    if (const auto dtype = merged_dtype(model, stored, adapter.weight, place.form.merged))
      dtypes[adapter.weight] = *dtype;
  const onnx::TrainedTensors merged = merge_adapters(adapters, base, trained);
  if (dtypes.empty()) return write(model, merged, place);
  WEFT_TRY(const onnx::OnnxModel whole, onnx::with_whole_weights(model, dtypes));
  return write(whole, renamed(merged, whole, dtypes), place);
}

}  // namespace

Result<onnx::WrittenFiles> write_merged(const onnx::OnnxModel& model, const Adapters& adapters,
                                        const onnx::TrainedTensors& base, const onnx::TrainedTensors& trained,
                                        const OutputPlace& place) {
  auto written = write_as_asked(model, adapters, base, trained, place);
  const bool in_half = !written && (written.error().code == ErrorCode::OutOfRange ||
                                    written.error().code == ErrorCode::InvalidArgument);
  if (place.form.merged || !in_half) return written;
  OutputPlace wide = place;  // nobody asked for halves
  wide.form.merged = dag::DType::F32;
  return write_as_asked(model, adapters, base, trained, wide);
}

Result<dag::Tensor> read_tensor(const onnx::TrainedTensors& tensors, const std::string& name) {
  const auto spec = tensors.specs.find(name);
  if (spec == tensors.specs.end()) return fail(ErrorCode::NotFound, "there is no tensor '" + name + "'");
  dag::Tensor tensor(spec->second);
  std::span<std::byte> rest = tensor.mutable_bytes();
  WEFT_TRY_STATUS(tensors.read(name, [&](std::span<const std::byte> bytes) -> Status {
    const size_t count = std::min(bytes.size(), rest.size());
    std::copy_n(bytes.begin(), count, rest.begin());
    rest = rest.subspan(count);
    return {};
  }));
  if (rest.empty()) return tensor;
  return fail(ErrorCode::Corrupted, "tensor '" + name + "' lacks " + std::to_string(rest.size()) + " bytes");
}

Result<dag::Tensor> read_float(const onnx::TrainedTensors& tensors, const std::string& name) {
  WEFT_TRY(dag::Tensor tensor, read_tensor(tensors, name));
  if (dag::is_half(tensor.dtype())) return widen_half(tensor);
  if (tensor.dtype() == dag::DType::F32) return tensor;
  return fail(ErrorCode::Unsupported, "tensor '" + name + "' is " + to_string(tensor.spec()));
}

onnx::TrainedTensors merge_adapters(const Adapters& adapters, const onnx::TrainedTensors& base,
                                    const onnx::TrainedTensors& trained) {
  onnx::TrainedTensors merged = trained;
  std::map<std::string, PlacedAdapter> by_weight;
  for (const PlacedAdapter& adapter : adapters) {
    merged.specs.erase(adapter.a());
    merged.specs.erase(adapter.b());
    if (const auto at = base.specs.find(adapter.weight); at != base.specs.end())
      merged.specs[adapter.weight] = {dag::DType::F32, at->second.shape};
    by_weight[adapter.weight] = adapter;
  }
  merged.read = [base, trained, by_weight](const std::string& name, const onnx::ByteSink& sink) -> Status {
    const auto at = by_weight.find(name);
    if (at == by_weight.end()) return trained.read(name, sink);
    WEFT_TRY(dag::Tensor weight, read_float(base, name));
    const dag::Shape& shape = weight.shape();
    if (shape.size() < 2 || std::any_of(shape.begin() + 2, shape.end(), [](int64_t d) { return d != 1; }))
      return fail(ErrorCode::InvalidArgument,
                  "'" + name + "' is " + to_string(weight.spec()) + ", and no adapter can be merged into it");
    WEFT_TRY(const dag::Tensor a, read_float(trained, at->second.a()));
    WEFT_TRY(const dag::Tensor b, read_float(trained, at->second.b()));
    if (a.spec() != a_spec(at->second, weight.shape()) || b.spec() != b_spec(at->second, weight.shape()))
      return fail(ErrorCode::InvalidArgument, "the adapter of '" + name + "' is " + to_string(a.spec()) +
                                                  " and " + to_string(b.spec()) + ", and does not fit " +
                                                  to_string(weight.spec()));
    const dag::Tensor whole = dag::merge(at->second, std::move(weight), a, b);
    constexpr size_t kPiece = size_t{1} << 20;  // whoever rounds it holds a piece beside it
    for (auto rest = whole.bytes(); !rest.empty(); rest = rest.subspan(std::min(rest.size(), kPiece)))
      WEFT_TRY_STATUS(sink(rest.first(std::min(rest.size(), kPiece))));
    return {};
  };
  return merged;
}

}  // namespace weft::train
