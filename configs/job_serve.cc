// What a job that serves says of itself. It has no data, no batches and no output: whoever writes such a key
// is told that it means nothing there.
#include <algorithm>

#include "configs/job_sections.h"

namespace weft::configs {
namespace {

constexpr uint64_t kContextMax = uint64_t{1} << 20;  // as of a request's tokens
constexpr uint64_t kSequencesMax = 4096, kRowsMax = 4096;
constexpr size_t kNameMax = 256;
constexpr std::string_view kMeaningless[] = {
    "inputs",     "data",        "batch_size", "microbatch_size", "shuffle",         "seed",
    "loss",       "steps",       "epochs",     "train",           "freeze",          "optimizer",
    "schedule",   "clip_norm",   "precision",  "on_divergence",   "gradient_ranges", "evaluate_every",
    "checkpoint", "compression", "output"};

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

}  // namespace

void refuse(MapReader& reader, std::string_view key) {
  if (const Node* node = reader.take(key))
    reader.problem(node->where,
                   "`" + reader.path_of(key) + "` means nothing with `task: serve`; take it away");
}

void read_serve(MapReader& root, const PathRules& rules, Problems& problems, Job& job) {
  for (const std::string_view key : kMeaningless) refuse(root, key);
  job.batch_size = job.microbatch_size = 1;
  job.serve.emplace();
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
  reader.finish();
}

}  // namespace weft::configs
