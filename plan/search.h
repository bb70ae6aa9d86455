// The search for a plan: which devices work, how many, in which order, where the cuts lie.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "plan/constraints.h"
#include "plan/model_cache.h"
#include "plan/search_options.h"
#include "plan/strategy.h"
#include "plan/worked.h"

namespace weft::plan {

struct Found {
  Worked chosen;
  std::optional<Plan::Fewer> fewer{};
  // With equal_bits: prefer and several kinds: what was decided against.
  std::optional<Duration> mixed_step{}, alike_step{};
};

// What it is made of outlives it.
class Search {
 public:
  Search(Workshop& workshop, const NamedStrategy& strategy, ModelCache& models);

  // Nothing: no plan fits.
  std::optional<Found> run();

 private:
  using Best = std::optional<Worked>;
  using Devices = std::vector<uint32_t>;

  std::optional<Found> try_fleet(bool tight);
  std::optional<Plan::Fewer> look_for_fewer(const Worked& chosen, uint32_t asked);

  void try_devices(Best& best, const Devices& devices, bool tight);
  void try_baselines(Best& best, const Devices& devices, uint32_t all, bool tight);
  void try_sites(Best& best, const Devices& devices, bool tight);
  void try_numbers(Best& best, const Devices& devices, uint32_t least, uint32_t most, bool tight);
  void try_stages(Best& best, const NamedStrategy& strategy, const Devices& devices, uint32_t stages,
                  bool tight);
  bool work_out_proposals(const Best& best, const NamedStrategy& strategy, const Scope& scope,
                          std::vector<Worked>& candidates);
  void choose_among(Best& best, std::vector<Worked> candidates, const Scope& scope);
  void consider(Best& best, Worked& chosen) const;

  uint32_t next_number(uint32_t stages) const;
  double least_estimate(const Proposal& proposal) const;
  Duration hopeless(const Best& best) const;
  Duration useless(const Best& best, const Proposal& proposal) const;
  Duration slowest_start(const Proposal& proposal) const;
  bool is_of_one_kind(const Worked& worked) const;
  bool is_of_one_site(const Worked& worked) const;

  void keep_start(const Worked& worked);
  void polish_best(Worked& best);
  std::vector<Worked*> starts_beside(const Worked& chosen);
  Devices idle_devices(const Worked& chosen) const;

  Workshop& workshop_;
  const NamedStrategy& strategy_;
  ModelCache& models_;
  const PlanRequest& request_;
  const SearchOptions& options_;
  const std::vector<DeviceView>& devices_;
  const Model& model_;
  std::shared_ptr<const Model> coarse_;  // to compare orders of devices
  std::vector<PinnedRange> pinned_;
  // The best by number of stages, rows and rings: where small changes may begin.
  std::map<std::pair<size_t, bool>, std::vector<Worked>> starts_;
};

}  // namespace weft::plan
