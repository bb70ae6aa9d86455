// What is trained beside a model, in place of it: `adapters`.
#include "configs/job_sections.h"

namespace weft::configs {
namespace {

constexpr size_t kEntriesMax = 64;

enum class EntryType : uint8_t { Lora, Full };

void read_begin(MapReader& reader, const Node& node, const PathRules& rules, AdapterEntry& entry) {
  const std::string text = node.kind == Node::Kind::Scalar ? node.text : std::string();
  if (text.ends_with(".safetensors")) {
    entry.begin = AdapterBegin::File;
    entry.file = read_file(reader, node, "init", rules);
    return;
  }
  static constexpr Choice<AdapterBegin> kBegins[] = {
      {"kaiming", AdapterBegin::Kaiming}, {"normal", AdapterBegin::Normal}, {"zero", AdapterBegin::Zero}};
  if (const auto begin = reader.choice(&node, "init", kBegins)) entry.begin = *begin;
}

void read_lora(MapReader& reader, const PathRules& rules, AdapterEntry& entry) {
  entry.rank = static_cast<int64_t>(reader.count("rank", 8, 1, dag::kAdapterRankMax));
  entry.alpha = reader.number("alpha", static_cast<double>(entry.rank), {0, kInfinity, /*above_min=*/true});
  entry.dropout = reader.number("dropout", 0, {.min = 0, .max = 1, .above_min = false, .below_max = true});
  if (const Node* begin = reader.take("init")) read_begin(reader, *begin, rules, entry);
  if (const Node* names = reader.take("names")) read_rename(reader, *names, "names", entry.names);
}

void read_entry(const Node& node, const std::string& path, size_t index, const PathRules& rules,
                Problems& problems, Job& job) {
  static constexpr Choice<EntryType> kTypes[] = {{"lora", EntryType::Lora}, {"full", EntryType::Full}};
  MapReader reader(node, path, problems);
  const auto type = reader.choice(reader.require("type", "say lora, or full"), "type", kTypes);
  const Node* node_of_targets = reader.require("targets", "name weights, as [\"*.q_proj*\", \"*.v_proj*\"]");
  std::vector<std::string> targets;
  if (node_of_targets)
    targets =
        reader.parse_patterns(*node_of_targets, "targets", /*least=*/1, "[\"*.q_proj*\", \"*.v_proj*\"]");
  if (!type) return;
  if (*type == EntryType::Lora) {
    AdapterEntry& entry = job.adapters.emplace_back();
    entry.path = path;
    entry.index = index;
    entry.targets = std::move(targets);
    read_lora(reader, rules, entry);
    return reader.finish();
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    // What is said of a pattern of `train` is said of this one.
    job.locations.insert_or_assign("train[" + std::to_string(job.trained.size()) + "]",
                                   job.where(path + ".targets[" + std::to_string(i) + "]"));
    job.trained.push_back(targets[i]);
  }
  reader.finish();
}

}  // namespace

void read_adapters(MapReader& root, const PathRules& rules, Problems& problems, Job& job) {
  const Node* node = root.take("adapters");
  if (!node) return;
  for (const auto& [key, patterns] : {std::pair{"train", &job.trained}, {"freeze", &job.freeze}})
    if (!patterns->empty())
      root.problem(job.where(key), std::string("`") + key +
                                       "` says what is trained, and so does `adapters`: all else is frozen; "
                                       "leave it away, and name what is to be trained whole in an entry of "
                                       "`adapters` with type: full");
  job.trained.clear();
  if (node->kind != Node::Kind::Sequence) {
    read_entry(*node, "adapters", 0, rules, problems, job);
  } else if (node->items.empty() || node->items.size() > kEntriesMax) {
    root.problem(node->where, "`adapters` is a list of " + std::to_string(node->items.size()) +
                                  " entries; it must hold 1 to " + std::to_string(kEntriesMax));
  } else {
    for (size_t i = 0; i < node->items.size(); ++i)
      read_entry(node->items[i], "adapters[" + std::to_string(i) + "]", i, rules, problems, job);
  }
  if (job.adapters.empty() && problems.empty())
    root.problem(node->where,
                 "`adapters` has no entry of type lora; to train some tensors whole say `train: [...]`");
  job.freeze = {"*"};
  job.spared = job.trained;
}

void read_base(MapReader& root, Problems& problems, Job& job) {
  const Node* node = root.take("base");
  if (!node) return;
  MapReader reader(*node, "base", problems);
  static constexpr Choice<BaseStore> kStores[] = {{"as_is", BaseStore::AsIs},
                                                  {"float32", BaseStore::Float32},
                                                  {"bf16", BaseStore::BF16},
                                                  {"int8", BaseStore::Int8},
                                                  {"int4", BaseStore::Int4}};
  if (const auto store = reader.choice(reader.take("store"), "store", kStores)) job.base.store = *store;
  job.base.block = static_cast<int64_t>(reader.count("block", 128, 16, uint64_t{1} << 16));
  if (job.base.block % 16 != 0) root.problem(node->where, "`base.block` is no multiple of 16");
  reader.finish();
}

}  // namespace weft::configs
