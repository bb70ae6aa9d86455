// The search for a plan: which devices work, how many, in which order, where the cuts lie.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/constraints.h"
#include "plan/evaluator.h"
#include "plan/model_cache.h"
#include "plan/search_options.h"
#include "plan/strategy.h"

namespace weft::plan {

struct Found {
  CandidatePlan chosen;
  std::optional<Plan::Fewer> fewer{};
  // With equal_bits: prefer and several kinds: what was decided against.
  std::optional<Duration> mixed_step{}, alike_step{};
};

// What it is made of outlives it.
class Search {
 public:
  Search(Evaluator& evaluator, const NamedStrategy& strategy, ModelCache& models);

  // Nothing: no plan fits.
  std::optional<Found> run();

 private:
  using Best = std::optional<CandidatePlan>;
  using Devices = std::vector<uint32_t>;

  std::optional<Found> try_fleet(bool tight);
  std::optional<Plan::Fewer> look_for_fewer(const CandidatePlan& chosen, uint32_t asked);

  void try_devices(Best& best, const Devices& devices, bool tight);
  void try_baselines(Best& best, const Devices& devices, uint32_t all, bool tight);
  void try_sites(Best& best, const Devices& devices, bool tight);
  void try_numbers(Best& best, const Devices& devices, uint32_t least, uint32_t most, bool tight);
  void try_stages(Best& best, const NamedStrategy& strategy, const Devices& devices, uint32_t stages,
                  bool tight);
  bool evaluate_proposals(const Best& best, const NamedStrategy& strategy, const Scope& scope,
                          std::vector<CandidatePlan>& candidates);
  void choose_among(Best& best, std::vector<CandidatePlan> candidates, const Scope& scope);
  void consider(Best& best, CandidatePlan& chosen) const;

  uint32_t next_number(uint32_t stages) const;
  double least_estimate(const Proposal& proposal) const;
  Duration hopeless(const Best& best) const;
  Duration useless(const Best& best, const Proposal& proposal) const;
  Duration slowest_start(const Proposal& proposal) const;
  bool is_of_one_kind(const CandidatePlan& candidate) const;
  bool is_of_one_site(const CandidatePlan& candidate) const;

  void keep_start(const CandidatePlan& candidate);
  void polish_best(CandidatePlan& best);
  std::vector<CandidatePlan*> starts_beside(const CandidatePlan& chosen);
  Devices idle_devices(const CandidatePlan& chosen) const;

  Evaluator& evaluator_;
  const NamedStrategy& strategy_;
  ModelCache& models_;
  const PlanRequest& request_;
  const SearchOptions& options_;
  const std::vector<DeviceView>& devices_;
  const Model& model_;
  std::shared_ptr<const Model> coarse_;  // to compare orders of devices
  std::vector<PinnedRange> pinned_;
  // The best by number of stages, rows and rings: where small changes may begin.
  std::map<std::pair<size_t, bool>, std::vector<CandidatePlan>> starts_;
};

}  // namespace weft::plan
