#include "train/adapters.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/glob.h"
#include "base/rng.h"
#include "base/shortest.h"
#include "configs/rename.h"
#include "dag/op_table.h"
#include "train/adapter_files.h"

namespace weft::train {
namespace {

using configs::AdapterBegin;
using configs::AdapterEntry;
using configs::Job;

// FNV-1a: which stream of draws a name has.
uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

dag::Tensor drawn(dag::TensorSpec spec, const std::string& name, uint64_t seed, double bound,
                  double deviation) {
  dag::Tensor tensor(std::move(spec));
  Rng rng(seed, stream_of(name));
  for (float& value : tensor.mutable_as<float>())
    value = static_cast<float>(deviation > 0 ? deviation * rng.normal() : bound * (2 * rng.uniform() - 1));
  return tensor;
}

// As PEFT begins them.
void begin(const PlacedAdapter& adapter, const dag::Shape& weight, AdapterBegin how, uint64_t seed,
           dag::Weights& weights) {
  const dag::TensorSpec a = dag::a_spec(adapter, weight), b = dag::b_spec(adapter, weight);
  weights[adapter.a()] = dag::Tensor(a);
  weights[adapter.b()] = dag::Tensor(b);
  if (how == AdapterBegin::Zero) return;
  const bool is_table = adapter.form == dag::Adapter::Form::Table;
  const std::string name = is_table ? adapter.b() : adapter.a();
  const double deviation =
      how == AdapterBegin::Normal ? 1 / static_cast<double>(adapter.rank) : (is_table ? 1 : 0);
  weights[name] =
      drawn(is_table ? b : a, name, seed, 1 / std::sqrt(static_cast<double>(a.shape[1])), deviation);
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

Result<Adapters> add_entry(const Job& job, const AdapterEntry& entry, const onnx::OnnxModel& model,
                           bool trains, onnx::ImportedModel& imported) {
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
    begin(placed, weight, entry.begin, job.seed, imported.weights);
  }
  if (entry.begin == AdapterBegin::File) {
    const Status taken = take_adapters(entry.file, adapters, job.trained, imported.weights);
    if (!taken) return fail(job.error(taken.error().code, entry.path + ".init", taken.error().message));
  }
  if (entry.begin == AdapterBegin::Zero && trains)
    imported.warnings.push_back("adapters that begin with `init: zero` have no gradient, and learn nothing");
  if (!adapted->passed.empty())
    imported.notes.push_back("no adapter stands beside " + adapted->passed.front() +
                             (adapted->passed.size() == 1
                                  ? std::string()
                                  : "; nor beside " + std::to_string(adapted->passed.size() - 1) + " more"));
  return adapters;
}

}  // namespace

Result<Adapters> add_adapters(const Job& job, const onnx::OnnxModel& model, bool trains,
                              onnx::ImportedModel& imported) {
  Adapters adapters;
  for (const AdapterEntry& entry : job.adapters) {
    WEFT_TRY(Adapters more, add_entry(job, entry, model, trains, imported));
    adapters.insert(adapters.end(), more.begin(), more.end());
  }
  WEFT_TRY_STATUS(check_modules(job, adapters));
  return adapters;
}

std::string describe(const Adapters& adapters) {
  std::string text;
  for (const PlacedAdapter& adapter : adapters)
    if (adapter.scale() != 1) text += "scale of '" + adapter.a() + "' " + shortest(adapter.scale()) + "\n";
  return text;
}

onnx::TrainedTensors tensors_of(const onnx::OnnxModel& model) {
  onnx::TrainedTensors tensors;
  for (const auto& [name, tensor] : model.weights()) tensors.specs.emplace(name, tensor.spec());
  tensors.read = [model](const std::string& name, const onnx::ByteSink& sink) {
    return model.read_weight(name, sink);
  };
  return tensors;
}

Result<dag::Tensor> read_float(const onnx::TrainedTensors& tensors, const std::string& name) {
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
  if (!rest.empty())
    return fail(ErrorCode::Corrupted,
                "tensor '" + name + "' lacks " + std::to_string(rest.size()) + " bytes");
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
    WEFT_TRY(const dag::Tensor weight, read_float(base, name));
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
    return sink(dag::merge(at->second, weight, a, b).bytes());
  };
  return merged;
}

}  // namespace weft::train
