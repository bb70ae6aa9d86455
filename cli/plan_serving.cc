#include "cli/plan_serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/json_event.h"
#include "cli/live_line.h"
#include "cli/plan_job.h"
#include "cli/plan_placement.h"
#include "cli/plan_report.h"
#include "cli/report.h"
#include "dag/onnx/outline.h"
#include "plan/explain.h"
#include "train/serving_request.h"

namespace weft::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string show_time(double seconds) {
  return plan::show(Duration(static_cast<int64_t>(std::min(seconds, 1e9) * 1e9)));
}

std::string format_tokens(double rate) {
  return fmt::format("{:.{}f} tokens/s", rate, rate >= 99.95 ? 0 : rate >= 9.995 ? 1 : 2);
}

double of_one(const plan::ServingPlan& plan) { return 1 / std::max(1e-12, plan.token_seconds); }

// What a stage takes of its device with all caches full, and of its host if that has no memory of its own.
Bytes memory_of(const plan::ServingPlan& plan, const plan::ServingStage& stage, bool with_host) {
  return stage.weights + stage.work + stage.cache * static_cast<int64_t>(plan.positions_max) +
         stage.kept * static_cast<int64_t>(with_host ? plan.kept_positions_max : 0);
}

OrderedJson json_stage_of_ring(const ServingShown& shown, size_t s) {
  const plan::ServingStage& stage = shown.plan.stages[s];
  const plan::DeviceView& device = shown.cluster.view.devices()[stage.device];
  OrderedJson parts = OrderedJson::array();
  for (const plan::PartSpan& span : stage.parts) parts.push_back({span.begin, span.end});
  return {{"stage", s},
          {"device", device.name},
          {"region", device.region},
          {"parts", std::move(parts)},
          {"weight_bytes", stage.weights.value},
          {"cache_bytes_a_position", stage.cache.value},
          {"kept_bytes_a_position", stage.kept.value},
          {"work_bytes", stage.work.value},
          {"device_memory_bytes", device.memory.value},
          {"row_seconds", stage.seconds},
          {"hop_seconds", stage.hop_seconds}};
}

std::string parts_of(const plan::ServingStage& stage) {
  std::string text;
  for (const plan::PartSpan& span : stage.parts)
    text += fmt::format("{}{}-{}", text.empty() ? "" : ", ", span.begin + 1, span.end);
  return text;
}

}  // namespace

Result<std::optional<configs::Job>> find_serving_job(const std::filesystem::path& path,
                                                     std::span<const std::string> sets) {
  if (path.extension() == ".onnx") return std::optional<configs::Job>();
  WEFT_TRY(configs::Job job, read_planned_job(path, sets));
  return job.task == configs::Task::Serve ? std::optional(std::move(job)) : std::nullopt;
}

Result<ServingShown> plan_serving_job(const configs::Job& job, PlanCluster cluster, bool complete) {
  WEFT_TRY_STATUS(exclude_peers(job, cluster, complete));
  if (const auto learnt = job.serve->model_of)
    return fail(job.error(ErrorCode::Unsupported, "model",
                          "only the broker has what job " + std::to_string(*learnt) +
                              " has learnt: `weft fetch` writes it, for a plan of that file"));
  auto model = onnx::read_outline(job.model);
  if (!model) return fail(job.error(model.error().code, "model", model.error().message));
  WEFT_TRY(train::ServedDecoder decoder, train::open_decoder(job, *model));
  if (const configs::DraftTerms& terms = job.serve->draft; terms.kind == plan::DraftKind::Decoder) {
    auto draft = onnx::read_outline(terms.file);
    if (!draft) return fail(job.error(draft.error().code, "serve.draft", draft.error().message));
    WEFT_TRY(decoder.draft, train::open_draft(job, *draft, decoder));
  }
  WEFT_TRY(const plan::ServingRequest request,
           train::serving_request(job, decoder, cluster.view, {&kCatalogueTraits, 1}));
  ServingShown shown{.job = job.source, .cluster = {}, .plan = {}, .parts = request.parts.size()};
  WEFT_TRY(shown.plan, plan::plan_serving(request));
  shown.cluster = std::move(cluster);
  return shown;
}

std::string json_serving(const ServingShown& shown) {
  OrderedJson stages = OrderedJson::array(), lines = OrderedJson::array();
  for (size_t s = 0; s < shown.plan.stages.size(); ++s) stages.push_back(json_stage_of_ring(shown, s));
  for (const auto* some : {&shown.plan.explanation, &shown.cluster.notes})
    for (const std::string& line : *some) lines.push_back(line);
  OrderedJson event{{"event", "plan"},
                    {"job", shown.job},
                    {"stages", std::move(stages)},
                    {"seconds_a_token", shown.plan.token_seconds},
                    {"first_token_seconds", shown.plan.first_token_seconds},
                    {"tokens_per_second_of_one", of_one(shown.plan)},
                    {"tokens_per_second", shown.plan.tokens_per_second},
                    {"positions_max", shown.plan.positions_max},
                    {"sequences", shown.plan.sequences},
                    {"lines", std::move(lines)}};
  if (const double guessed = shown.plan.guessed_tokens_per_second; guessed > 0)
    event["tokens_per_second_of_one_guessed"] = guessed;
  return dump(event);
}

std::string text_serving(const ServingShown& shown, bool verbose) {
  std::string text;
  for (const std::string& line : plan_lines(shown.plan.explanation, verbose)) text += printable(line) + "\n";
  for (const std::string& note : shown.cluster.notes) text += "note: " + printable(note) + "\n";
  std::vector<std::vector<std::string>> rows = {{"STAGE", "DEVICE", "REGION", "PARTS", "WEIGHTS",
                                                 "CACHE A POSITION", "MEMORY", "OF", "ROW", "TO NEXT"}};
  for (size_t s = 0; s < shown.plan.stages.size(); ++s) {
    const plan::ServingStage& stage = shown.plan.stages[s];
    const plan::DeviceView& device = shown.cluster.view.devices()[stage.device];
    rows.push_back({std::to_string(s + 1), printable(device.name), printable(device.region), parts_of(stage),
                    plan::show(stage.weights), plan::show(stage.cache),
                    plan::show(memory_of(shown.plan, stage, device.host_memory.value <= 0)),
                    plan::show(device.memory), show_time(stage.seconds),
                    shown.plan.stages.size() == 1 ? "-" : show_time(stage.hop_seconds)});
  }
  return text + "\n" + text_table(rows, 4) + "\n" +
         fmt::format("predicted: {} a token, {} of one sequence, {} of {}\n",
                     show_time(shown.plan.token_seconds), format_tokens(of_one(shown.plan)),
                     format_tokens(shown.plan.tokens_per_second), shown.plan.sequences);
}

}  // namespace weft::cli
