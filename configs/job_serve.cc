// What a job that serves says of itself. It has no data, no batches and no output: whoever writes such a key
// is told that it means nothing there.
#include <algorithm>
#include <charconv>

#include "configs/job_sections.h"

namespace weft::configs {
namespace {

constexpr uint64_t kContextMax = uint64_t{1} << 20;  // as of a request's tokens
constexpr uint64_t kSequencesMax = 4096, kRowsMax = 4096;
constexpr size_t kNameMax = 256;
constexpr std::string_view kMeaningless[] = {
    "inputs",         "data",           "batch_size", "microbatch_size", "shuffle",         "seed",
    "loss",           "steps",          "epochs",     "train",           "freeze",          "optimizer",
    "schedule",       "clip_norm",      "precision",  "on_divergence",   "gradient_ranges", "replicas",
    "sync",           "evaluate_every", "checkpoint", "compression",     "output",          "init",
    "optimizer_state"};

void read_name(MapReader& reader, Job& job) {
  job.serve->name = reader.required_text("name", "say under which name requests ask for it");
  const std::string& name = job.serve->name;
  const bool is_plain = name.size() <= kNameMax && std::none_of(name.begin(), name.end(), [](char c) {
                          return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
                        });
  if (!is_plain)
    reader.problem(reader.where(), "`serve.name` has at most " + std::to_string(kNameMax) +
                                       " bytes, and no control characters");
}

// The P of "coin:P".
std::optional<double> chance_of(std::string_view text) {
  double chance = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), chance);
  const bool is_chance =
      error == std::errc() && rest == text.data() + text.size() && chance >= 0 && chance <= 1;
  return is_chance ? std::optional(chance) : std::nullopt;
}

DraftTerms read_draft(MapReader& reader, const Node& node, const PathRules& rules) {
  constexpr std::string_view kCoin = "coin:";
  const auto text = reader.parse_text(node, "draft");
  if (!text || *text == "none") return {};
  if (*text == "ngram") return {.kind = plan::DraftKind::Ngram};
  if (!text->starts_with(kCoin))
    return {.kind = plan::DraftKind::Decoder, .file = read_file(reader, node, "draft", rules)};
  const auto right = chance_of(std::string_view(*text).substr(kCoin.size()));
  if (!right)
    reader.problem(node.where,
                   "`serve.draft: coin:P` needs a number from 0 to 1 as P: how often guesses are "
                   "right");
  return {.kind = plan::DraftKind::Coin, .right = right.value_or(0)};
}

}  // namespace

void refuse(MapReader& reader, std::string_view key) {
  if (const Node* node = reader.take(key))
    reader.problem(node->where,
                   "`" + reader.path_of(key) + "` means nothing with `task: serve`; take it away");
}

void read_serve(MapReader& root, const PathRules& rules, Problems& problems, Job& job) {
  for (const std::string_view key : kMeaningless) refuse(root, key);
  job.batch_size = job.microbatch_size = 1;
  if (!job.serve) job.serve.emplace();
  const Node* node = root.require("serve", "as {name: my-model}");
  if (!node) return;
  static constexpr Choice<plan::ServeObjective> kObjectives[] = {
      {"latency", plan::ServeObjective::Latency}, {"throughput", plan::ServeObjective::Throughput}};
  MapReader reader(*node, "serve", problems);
  read_name(reader, job);
  ServeTerms& serve = *job.serve;
  if (const Node* tokenizer = reader.take("tokenizer"))
    serve.tokenizer = read_file(reader, *tokenizer, "tokenizer", rules);
  serve.chat_template = reader.text("chat_template", "");
  serve.context = reader.count("context", 0, 0, kContextMax);
  serve.sequences_max =
      static_cast<uint32_t>(reader.count("sequences_max", serve.sequences_max, 1, kSequencesMax));
  serve.rows_max = static_cast<uint32_t>(reader.count("rows_max", serve.rows_max, 1, kRowsMax));
  if (const auto chosen = reader.choice(reader.take("objective"), "objective", kObjectives))
    serve.objective = *chosen;
  if (const Node* draft = reader.take("draft")) serve.draft = read_draft(reader, *draft, rules);
  reader.finish();
}

}  // namespace weft::configs
