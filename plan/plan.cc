#include "plan/plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/answer.h"
#include "plan/noise.h"
#include "plan/refusal.h"
#include "plan/search.h"
#include "plan/strategy.h"

namespace weft::plan {
namespace {

Result<const NamedStrategy*> strategy_of(const PlanRequest& request) {
  if (const NamedStrategy* strategy = find_strategy(request.strategy)) return strategy;
  std::string names;
  for (const NamedStrategy& strategy : strategies())
    names += (names.empty() ? "" : ", ") + std::string(strategy.name);
  return fail(ErrorCode::InvalidArgument,
              "there is no planning strategy '" + request.strategy + "'; there are: " + names);
}

Result<Plan> plan_once(const PlanRequest& request, const SearchOptions& options, ModelCache& models) {
  WEFT_TRY(const NamedStrategy* const strategy, strategy_of(request));
  const std::shared_ptr<const Model> model = models.get(request, options.positions_max);
  WEFT_TRY_STATUS(check_stages(request, *model));
  Evaluator evaluator(request, *model, options);
  const std::optional<Found> found = Search(evaluator, *strategy, models).run();
  if (!found) return fail(why_nothing_fits(evaluator));
  return make_answer(evaluator, *found);
}

// Links that are hidden only just keep microbatches under way for longer, which costs where memory bounds how
// many: so the gentlest codecs, none, and six bits everywhere are planned, and of those that are nearly as
// fast as the fastest the one that adds least noise taken. Never slower than without.
Result<Plan> plan_compressed(PlanRequest request, const SearchOptions& options, ModelCache& models) {
  const Compression hiding = request.compression;
  const compress::Codec six{.kind = compress::Kind::Blocks, .bits = 6};
  std::optional<Result<Plan>> failed;
  std::vector<Plan> plans;
  for (const Compression& compression :
       {Compression{}, hiding, Compression{.policy = CompressionPolicy::Uniform, .codec = six}}) {
    request.compression = compression;
    auto plan = plan_once(request, options, models);
    const bool passes = plan && (plans.empty() || compression.policy != CompressionPolicy::Uniform ||
                                 is_within(noise_of(plan->codecs), noise_bound(hiding)));
    if (passes)
      plans.push_back(std::move(*plan));
    else if (!plan && !failed)
      failed = std::move(plan);
  }
  if (plans.empty()) return std::move(*failed);
  const auto step = [](const Plan& plan) { return seconds(plan.predicted_step); };
  std::stable_sort(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) {
    return noise_of(a.codecs).forward < noise_of(b.codecs).forward;
  });
  double fastest = step(plans.front());
  for (const Plan& plan : plans) fastest = std::min(fastest, step(plan));
  return std::move(*std::find_if(plans.begin(), plans.end(), [&](const Plan& plan) {
    return step(plan) <= options.nearly_as_fast * fastest;
  }));
}

}  // namespace

Result<Plan> make_plan(const PlanRequest& request, const SearchOptions& options, ModelCache& models) {
  WEFT_TRY_STATUS(check_request(request));
  if (request.compression.policy == CompressionPolicy::Auto) return plan_compressed(request, options, models);
  return plan_once(request, options, models);
}

Result<Plan> make_plan(const PlanRequest& request) {
  ModelCache models;
  return make_plan(request, SearchOptions{}, models);
}

}  // namespace weft::plan
