#include "cli/join_options.h"

#include <cstdlib>
#include <filesystem>

#include "configs/reader.h"
#include "configs/yaml.h"
#include "storage/text_file.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

constexpr size_t kListMax = 64;

// `device: cpu`, or a list of them.
void take_list(const char* key, configs::MapReader& reader, std::vector<std::string>& into) {
  const configs::Node* node = reader.take(key);
  if (node == nullptr) return;
  std::vector<std::string> texts;
  const auto take = [&](const configs::Node& one) {
    if (auto text = reader.parse_text(one, key)) texts.push_back(std::move(*text));
  };
  if (node->kind != configs::Node::Kind::Sequence) {
    take(*node);
  } else {
    if (node->items.empty() || node->items.size() > kListMax)
      reader.problem(node->where,
                     "`" + std::string(key) + "` is one, or a list of 1 to " + std::to_string(kListMax));
    for (const configs::Node& item : node->items) take(item);
  }
  if (into.empty()) into = std::move(texts);
}

void take_all(JoinOptions& options, configs::MapReader& reader, const fs::path& folder) {
  const auto take = [&](const char* key, std::string& into) {
    std::string text = reader.text(key, "");
    const bool taken = into.empty() && !text.empty();
    if (taken) into = std::move(text);
    return taken;
  };
  const auto take_path = [&](const char* key, std::string& into) {
    if (!take(key, into)) return;
    const char* home = std::getenv("HOME");
    if (into.starts_with("~/") && home != nullptr) into = (fs::path(home) / into.substr(2)).string();
    into = (folder / into).string();
  };
  take("broker", options.broker);
  if (take("token", options.token) && options.token.starts_with('@'))
    options.token = "@" + (folder / options.token.substr(1)).string();
  for (const auto& [key, into] : {std::pair{"name", &options.name},
                                  {"memory", &options.memory},
                                  {"host_memory", &options.host_memory},
                                  {"listen", &options.listen},
                                  {"advertise", &options.advertise},
                                  {"region", &options.region},
                                  {"owner", &options.owner},
                                  {"as", &options.emulate_as},
                                  {"upload", &options.upload},
                                  {"download", &options.download},
                                  {"disk", &options.disk},
                                  {"schedule", &options.schedule},
                                  {"hours", &options.schedule},
                                  {"jobs", &options.jobs},
                                  {"cpus", &options.guest.cpus},
                                  {"gpu_memory", &options.guest.gpu_memory},
                                  {"battery", &options.guest.battery},
                                  {"idle", &options.guest.idle},
                                  {"temperature", &options.guest.temperature},
                                  {"settle", &options.guest.settle},
                                  {"metrics", &options.metrics}})
    take(key, *into);
  take_path("data_dir", options.data_dir);
  take_path("weights", options.weights);
  take_path("emulate", options.emulate);
  options.dials_private = reader.flag("dial_private", false) || options.dials_private;
  options.guest.is_guest = reader.flag("guest", false) || options.guest.is_guest;
  take_list("device", reader, options.devices);
  take_list("pause_for", reader, options.guest.pause_for);
}

}  // namespace

Status read_join_config(JoinOptions& options) {
  WEFT_TRY(const std::string text, storage::read_text(options.config, configs::kYamlSizeMax));
  WEFT_TRY(const configs::Node tree, configs::parse_yaml(text, options.config));
  configs::Problems problems;
  configs::MapReader reader(tree, "", problems);
  reader.check_format();
  take_all(options, reader, fs::path(options.config).parent_path());
  reader.finish();
  if (!problems.empty()) return fail(problems.error());
  return {};
}

}  // namespace weft::cli
