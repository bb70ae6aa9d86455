// Where a job's model gets its first weights from, when that is not the model's own file: `init`.
#include "configs/job_sections.h"
#include "configs/rename.h"

namespace weft::configs {
namespace {

constexpr size_t kRulesMax = 256;

void read_patterns(MapReader& reader, const char* key, std::vector<std::string>& patterns) {
  if (const Node* node = reader.take(key))
    patterns = reader.parse_patterns(*node, key, /*least=*/0, "[\"head.*\", \"*.bias\"]");
}

}  // namespace

void read_rename(MapReader& reader, const Node& node, std::string_view key, RenameRules& rules) {
  const std::string path = "`" + reader.path_of(key) + "`";
  if (node.kind != Node::Kind::Map || node.entries.empty() || node.entries.size() > kRulesMax)
    return reader.problem(node.where, path +
                                          " must be a map from patterns to what takes their place, as "
                                          "{\"^transformer\\\\.\": \"\"}");
  for (const Entry& entry : node.entries) {
    if (entry.value.kind != Node::Kind::Scalar) {
      reader.problem(entry.value.where, path + ": what takes the place of '" + entry.key +
                                            "' must be a text; \"\" takes it away");
      continue;
    }
    if (const auto rule = Rename::compile(entry.key, entry.value.text); !rule)
      reader.problem(entry.where, path + ": " + rule.error().message);
    rules.emplace_back(entry.key, entry.value.text);
  }
}

void read_init(MapReader& root, const PathRules& rules, Problems& problems, Job& job) {
  const Node* node = root.take("init");
  if (!node) return;
  InitTerms& init = job.init.emplace();
  if (node->kind != Node::Kind::Map) {
    init.file = read_file(root, *node, "init", rules);
    return;
  }
  MapReader reader(*node, "init", problems);
  init.file = read_file_path(reader, "path", "name the file of tensors, as w.safetensors", rules);
  if (const Node* rename = reader.take("rename")) read_rename(reader, *rename, "rename", init.rename);
  read_patterns(reader, "transpose", init.transpose);
  read_patterns(reader, "ignore", init.ignore);
  read_patterns(reader, "keep", init.keep);
  init.partial = reader.flag("partial", false);
  reader.finish();
}

}  // namespace weft::configs
