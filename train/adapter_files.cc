#include "train/adapter_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/glob.h"
#include "base/shortest.h"
#include "configs/yaml.h"
#include "dag/onnx/outline.h"
#include "dag/onnx/stored_weights.h"
#include "data/safetensors.h"
#include "storage/files.h"
#include "storage/text_file.h"
#include "train/outputs.h"

namespace weft::train {
namespace {
namespace fs = std::filesystem;

using configs::Node;
using Form = dag::Adapter::Form;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kModel = "adapter_model.safetensors";
constexpr const char* kPlaces = "adapters.json";
constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kForms[] = {"linear", "table", "convolution"};
constexpr uint64_t kJsonMax = configs::kYamlSizeMax;

// ---- JSON, which YAML's reader reads

std::string json_text(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string json = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20)
      json += {'\\', 'u', '0', '0', kDigits[byte >> 4], kDigits[byte & 15]};
    else if (c == '"' || c == '\\')
      json += {'\\', c};
    else
      json += c;
  }
  return json + "\"";
}

template <typename List, typename ToJson>
std::string json_list(const List& list, const ToJson& to_json) {
  std::string json;
  for (const auto& item : list) json += (json.empty() ? "" : ", ") + to_json(item);
  return json;
}

tl::unexpected<Error> no_adapters(const std::string& what) {
  return fail(ErrorCode::Corrupted, "is no description of adapters: " + what);
}

const Node* find(const Node& map, std::string_view key) {
  const configs::Entry* entry = map.find(key);
  return entry ? &entry->value : nullptr;
}
std::string text_of(const Node& map, std::string_view key) {
  const Node* node = find(map, key);
  return node && node->kind == Node::Kind::Scalar ? node->text : std::string();
}
template <typename T>
std::optional<T> number_of(const std::string& text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

// Rank, alpha and dropout within bounds.
Status set_terms(const std::string& rank, const std::string& alpha, const std::string& dropout,
                 PlacedAdapter& adapter) {
  const auto r = number_of<int64_t>(rank);
  const auto a = number_of<double>(alpha), d = number_of<double>(dropout.empty() ? "0" : dropout);
  if (!r || *r < 1 || *r > dag::kAdapterRankMax) return no_adapters("the rank '" + rank + "'");
  if (!a || !std::isfinite(*a)) return no_adapters("the alpha '" + alpha + "'");
  if (!d || !(*d >= 0 && *d < 1)) return no_adapters("the dropout '" + dropout + "'");
  adapter.rank = *r;
  adapter.alpha = *a;
  adapter.dropout = *d;
  return {};
}

// ---- names as PEFT has them

std::string key_of(const PlacedAdapter& adapter, char factor) {
  const bool is_table = adapter.form == Form::Table;
  return kPrefix + adapter.module + (is_table ? ".lora_embedding_" : ".lora_") + factor +
         (is_table ? "" : ".weight");
}

std::string module_of_tensor(const std::string& initializer) {
  for (const std::string_view end : {".weight", ".bias"})
    if (initializer.ends_with(end)) return initializer.substr(0, initializer.size() - end.size());
  return initializer;
}

// What was trained whole: by key.
std::map<std::string, std::string> whole_tensors(const Adapters& adapters,
                                                 const onnx::TrainedTensors& trained) {
  std::set<std::string> factors;
  for (const PlacedAdapter& adapter : adapters) factors.insert({adapter.a(), adapter.b()});
  std::map<std::string, std::string> whole;
  for (const auto& [name, spec] : trained.specs)
    if (!factors.contains(name)) whole[kPrefix + name] = name;
  return whole;
}

std::string config_json(const Adapters& adapters, const std::map<std::string, std::string>& whole,
                        const std::string& base) {
  const PlacedAdapter& first = adapters.front();
  std::set<std::string> saved;
  for (const auto& [key, name] : whole) saved.insert(module_of_tensor(name));
  std::vector<const PlacedAdapter*> other_ranks, other_alphas;
  for (const PlacedAdapter& adapter : adapters) {
    if (adapter.rank != first.rank) other_ranks.push_back(&adapter);
    if (adapter.alpha != first.alpha) other_alphas.push_back(&adapter);
  }
  // Of [in, out] are layers like GPT-2's Conv1D; where an exporter turned a weight and renamed it, the model
  // has it the other way round.
  const bool in_first = std::any_of(adapters.begin(), adapters.end(), [](const PlacedAdapter& one) {
    return one.form == Form::Linear && one.in_first && !one.weight.starts_with("onnx::");
  });
  const auto rank = [](const PlacedAdapter* one) {
    return json_text(one->module) + ": " + std::to_string(one->rank);
  };
  const auto alpha = [](const PlacedAdapter* one) {
    return json_text(one->module) + ": " + shortest(one->alpha);
  };
  const auto module = [](const PlacedAdapter& one) { return json_text(one.module); };
  return "{\n  \"alpha_pattern\": {" + json_list(other_alphas, alpha) +
         "},\n  \"auto_mapping\": null,\n  \"base_model_name_or_path\": " + json_text(base) +
         ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": " + (in_first ? "true" : "false") +
         ",\n  \"inference_mode\": true,\n  \"init_lora_weights\": true,\n  \"lora_alpha\": " +
         shortest(first.alpha) + ",\n  \"lora_dropout\": " + shortest(first.dropout) +
         ",\n  \"modules_to_save\": " + (saved.empty() ? "null" : "[" + json_list(saved, json_text) + "]") +
         ",\n  \"peft_type\": \"LORA\",\n  \"r\": " + std::to_string(first.rank) +
         ",\n  \"rank_pattern\": {" + json_list(other_ranks, rank) + "},\n  \"target_modules\": [" +
         json_list(adapters, module) + "],\n  \"task_type\": null\n}\n";
}

Status write_tensors(const fs::path& path, const std::map<std::string, std::string>& names,
                     const onnx::TrainedTensors& trained, storage::Files& files) {
  std::vector<data::NamedSpec> tensors;
  for (const auto& [key, name] : names) {
    const auto spec = trained.specs.find(name);
    if (spec == trained.specs.end()) return fail(ErrorCode::NotFound, "'" + name + "' was not trained");
    tensors.push_back({key, spec->second});
  }
  return files.write_atomic_pieces(path,
                                   [&](const storage::Files::Sink& sink) {
                                     return data::write_safetensors(
                                         tensors,
                                         [&](const std::string& key, const data::ByteSink& bytes) {
                                           return trained.read(names.at(key), bytes);
                                         },
                                         sink);
                                   },
                                   {.mode = 0644});
}

}  // namespace

fs::path adapter_folder(const fs::path& output) { return fs::path(output).replace_extension(".adapter"); }

std::string to_json(const Adapters& adapters) {
  return "{\"adapters\": [\n" +
         json_list(
             adapters,
             [](const PlacedAdapter& one) {
               return "{\"weight\": " + json_text(one.weight) + ", \"module\": " + json_text(one.module) +
                      ", \"form\": \"" + kForms[static_cast<size_t>(one.form)] +
                      "\", \"in_first\": " + (one.in_first ? "true" : "false") +
                      ", \"rank\": " + std::to_string(one.rank) + ", \"alpha\": " + shortest(one.alpha) +
                      ", \"dropout\": " + shortest(one.dropout) + "}\n";
             }) +
         "]}\n";
}

Result<Adapters> parse_adapters(std::string_view json) {
  const auto root = configs::parse_yaml(json, kPlaces);
  if (!root) return no_adapters(root.error().message);
  const Node* list = find(*root, "adapters");
  if (!list || list->kind != Node::Kind::Sequence || list->items.empty())
    return no_adapters("no list of any");
  Adapters adapters;
  std::set<std::string> weights;
  for (const Node& item : list->items) {
    PlacedAdapter& adapter = adapters.emplace_back();
    adapter.weight = text_of(item, "weight");
    if (!weights.insert(adapter.weight).second) return no_adapters("two of '" + adapter.weight + "'");
    adapter.module = text_of(item, "module");
    adapter.in_first = text_of(item, "in_first") == "true";
    const auto form = std::find(std::begin(kForms), std::end(kForms), text_of(item, "form"));
    if (adapter.weight.empty() || adapter.module.empty() || form == std::end(kForms))
      return no_adapters("one without weight, module or form");
    adapter.form = static_cast<Form>(form - std::begin(kForms));
    WEFT_TRY_STATUS(
        set_terms(text_of(item, "rank"), text_of(item, "alpha"), text_of(item, "dropout"), adapter));
  }
  return adapters;
}

Status write_adapters(const fs::path& folder, const Adapters& adapters, const onnx::TrainedTensors& trained,
                      const std::string& base) {
  storage::Files files;
  WEFT_TRY_STATUS(files.make_directories(folder));
  std::map<std::string, std::string> names = whole_tensors(adapters, trained);
  const std::string config = config_json(adapters, names, base), places = to_json(adapters);
  for (const PlacedAdapter& adapter : adapters) {
    names[key_of(adapter, 'A')] = adapter.a();
    names[key_of(adapter, 'B')] = adapter.b();
  }
  WEFT_TRY_STATUS(write_tensors(folder / kModel, names, trained, files));
  WEFT_TRY_STATUS(files.write_atomic(folder / kPlaces, std::as_bytes(std::span(places)), {.mode = 0644}));
  return files.write_atomic(folder / kConfig, std::as_bytes(std::span(config)), {.mode = 0644});
}

Status check_adapter_folder(const fs::path& folder) {
  storage::Files files;
  std::error_code code;
  if (!fs::exists(folder, code)) return files.check_writable(folder);
  if (!fs::is_directory(folder, code))
    return fail(ErrorCode::InvalidArgument,
                folder.string() + ", where adapters are written, is a file; name another output");
  for (const char* name : {kConfig, kModel, kPlaces}) WEFT_TRY_STATUS(files.check_writable(folder / name));
  return {};
}

Status take_adapters(const fs::path& path, const Adapters& adapters, std::span<const std::string> full,
                     dag::Weights& weights) {
  WEFT_TRY(const data::TensorFiles file, data::TensorFiles::open(path));
  size_t taken = 0;
  const auto take = [&](const std::string& key, const std::string& name) -> Status {
    const auto at = file.tensors().find(key);
    if (at == file.tensors().end())
      return fail(ErrorCode::NotFound, path.string() + " has no tensor '" + key + "'");
    dag::Tensor& into = weights.at(name);
    WEFT_TRY(dag::Tensor tensor, file.whole(key));
    if (tensor.shape() != into.shape() || !is_float(tensor.dtype()))
      return fail(ErrorCode::InvalidArgument, path.string() + " has '" + key + "' as " +
                                                  to_string(tensor.spec()) + ", and here it is " +
                                                  to_string(into.spec()));
    into = tensor.dtype() == into.dtype() ? tensor : dag::from_doubles(into.spec(), to_doubles(tensor));
    ++taken;
    return {};
  };
  for (const PlacedAdapter& adapter : adapters) {
    WEFT_TRY_STATUS(take(key_of(adapter, 'A'), adapter.a()));
    WEFT_TRY_STATUS(take(key_of(adapter, 'B'), adapter.b()));
  }
  for (auto& [name, tensor] : weights)
    if (file.tensors().contains(kPrefix + name) &&
        std::any_of(full.begin(), full.end(),
                    [&](const std::string& pattern) { return matches_glob(pattern, name); }))
      WEFT_TRY_STATUS(take(kPrefix + name, name));
  if (taken == file.tensors().size()) return {};
  return fail(ErrorCode::InvalidArgument,
              path.string() + " has " + std::to_string(file.tensors().size()) + " tensors, of which only " +
                  std::to_string(taken) + " have a place among the adapters and what is trained whole here");
}

namespace {

// Of a model's tensors, by name.
using Specs = std::map<std::string, dag::TensorSpec, std::less<>>;

// Where a file of PEFT's own puts it, by the names of its tensors.
class ForeignFolder {
 public:
  ForeignFolder(const Specs& weights, const data::TensorFiles& file, Node config)
      : weights_(weights), file_(file), config_(std::move(config)) {}

  Result<Adapters> read() const {
    if (text_of(config_, "peft_type") != "LORA") return no_adapters("peft_type is not LORA");
    if (text_of(config_, "use_dora") == "true" || text_of(config_, "use_rslora") == "true")
      return fail(ErrorCode::Unsupported, "adapters of DoRA and of rank-stabilized LoRA are not read");
    Adapters adapters;
    for (const auto& [key, place] : file_.tensors()) {
      for (const auto& [end, form] : {std::pair<std::string_view, Form>{".lora_A.weight", Form::Linear},
                                      {".lora_embedding_A", Form::Table}})
        if (key.starts_with(kPrefix) && key.ends_with(end)) {
          WEFT_TRY(PlacedAdapter adapter, place_of(key, end, form));
          adapters.push_back(std::move(adapter));
        }
    }
    if (adapters.empty()) return no_adapters("the file has no tensor " + std::string(kPrefix) + "....lora_A");
    return adapters;
  }

 private:
  Result<PlacedAdapter> place_of(const std::string& key, std::string_view end, Form form) const {
    PlacedAdapter adapter;
    const size_t prefix = std::string_view(kPrefix).size();
    adapter.module = key.substr(prefix, key.size() - prefix - end.size());
    adapter.weight = adapter.module + ".weight";
    if (!weights_.contains(adapter.weight)) adapter.weight = adapter.module;
    const auto weight = weights_.find(adapter.weight);
    if (weight == weights_.end())
      return fail(ErrorCode::NotFound, "the model has no initializer '" + adapter.module +
                                           ".weight' for the adapter of '" + adapter.module + "'");
    adapter.form = weight->second.rank() > 2 ? Form::Convolution : form;
    adapter.in_first =
        form == Form::Table || (adapter.form == Form::Linear && text_of(config_, "fan_in_fan_out") == "true");
    WEFT_TRY_STATUS(set_terms(of_pattern("rank_pattern", adapter.module, text_of(config_, "r")),
                              of_pattern("alpha_pattern", adapter.module, text_of(config_, "lora_alpha")),
                              text_of(config_, "lora_dropout"), adapter));
    return adapter;
  }

  // A pattern that is the module's name, or its end.
  std::string of_pattern(std::string_view key, const std::string& module,
                         const std::string& otherwise) const {
    const Node* patterns = find(config_, key);
    if (!patterns || patterns->kind != Node::Kind::Map) return otherwise;
    for (const configs::Entry& entry : patterns->entries)
      if (module == entry.key || module.ends_with("." + entry.key)) return entry.value.text;
    return otherwise;
  }

  const Specs& weights_;
  const data::TensorFiles& file_;
  Node config_;
};

Result<Adapters> adapters_in(const fs::path& folder, const Specs& weights, const data::TensorFiles& file) {
  std::error_code code;
  if (fs::exists(folder / kPlaces, code)) {
    WEFT_TRY(const std::string json, storage::read_text(folder / kPlaces, kJsonMax));
    return parse_adapters(json);
  }
  WEFT_TRY(const std::string json, storage::read_text(folder / kConfig, kJsonMax));
  const auto config = configs::parse_yaml(json, kConfig);
  if (!config) return no_adapters(config.error().message);
  return ForeignFolder(weights, file, *config).read();
}

}  // namespace

Result<AdapterFolder> read_adapter_folder(const fs::path& folder, const onnx::OnnxModel& model) {
  WEFT_TRY(data::TensorFiles opened, data::TensorFiles::open(folder / kModel));
  const auto file = std::make_shared<const data::TensorFiles>(std::move(opened));
  const Specs weights = tensors_of(model).specs;
  auto adapters = adapters_in(folder, weights, *file);
  if (!adapters) return fail(adapters.error().within(folder.string()));
  const std::map<std::string, bool> inputs_first = onnx::inputs_first(model);
  std::map<std::string, std::string> keys;  // by initializer
  for (PlacedAdapter& adapter : *adapters) {
    // The factors are the same whichever way round this model has the matrix.
    if (const auto at = inputs_first.find(adapter.weight);
        adapter.form == Form::Linear && at != inputs_first.end())
      adapter.in_first = at->second;
    if (!weights.contains(adapter.weight))
      return fail(ErrorCode::NotFound, folder.string() + ": the model has no initializer '" + adapter.weight +
                                           "', which an adapter is for: it is of another model");
    keys[adapter.a()] = key_of(adapter, 'A');
    keys[adapter.b()] = key_of(adapter, 'B');
  }
  for (const auto& [key, place] : file->tensors())
    if (key.starts_with(kPrefix))
      if (std::string name = key.substr(std::string_view(kPrefix).size()); weights.contains(name))
        keys[name] = key;
  onnx::TrainedTensors tensors;
  for (const auto& [name, key] : keys) {
    const auto at = file->tensors().find(key);
    if (at == file->tensors().end())
      return fail(ErrorCode::NotFound, folder.string() + ": the file has no tensor '" + key + "'");
    tensors.specs.emplace(name, at->second.spec);
  }
  if (keys.size() != file->tensors().size())
    return fail(ErrorCode::InvalidArgument, folder.string() + ": of " +
                                                std::to_string(file->tensors().size()) + " tensors only " +
                                                std::to_string(keys.size()) + " have a place in the model");
  tensors.read = [file, keys](const std::string& name, const onnx::ByteSink& sink) {
    return file->read(keys.at(name), sink);
  };
  return AdapterFolder{*std::move(adapters), std::move(tensors)};
}

Result<size_t> merge_files(const fs::path& model, const fs::path& folder, const fs::path& output,
                           const configs::OutputForm& form) {
  WEFT_TRY_STATUS(check_trained_output(output, files_of_model(model)));
  WEFT_TRY(const onnx::OnnxModel opened, onnx::open_model(model));
  WEFT_TRY(const AdapterFolder read, read_adapter_folder(folder, opened));
  const auto written = write_merged(opened, read.adapters, tensors_of(opened), read.tensors,
                                    {output, form, model.parent_path()});
  if (!written) return fail(written.error());
  return read.adapters.size();
}

}  // namespace weft::train
