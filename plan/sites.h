// A plan in which no site is left out: each holds an op with parameters. What a fleet of several sites
// reaches together is asked of a planner by this, where one site alone would be the faster answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/proposal.h"
#include "plan/request.h"

namespace weft::plan {

class SiteCover {
 public:
  explicit SiteCover(const PlanRequest& request);

  bool is_asked() const { return request_.every_site; }
  uint32_t sites() const { return static_cast<uint32_t>(sites_.size()); }

  // Whether each site has the initializer of a parameter. `devices`: by stage.
  bool is_kept(const std::vector<uint32_t>& stage_of_op, const std::vector<uint32_t>& devices) const;
  // The proposals with borders moved, as little as that takes, so that some stage of each site has a position
  // with parameters; those that leave a site out go. As they are where nothing is asked.
  std::vector<Proposal> within(const Scope& scope, std::vector<Proposal> proposals) const;

  // Why it cannot be; empty: it is not for the sites.
  std::string why_not_kept() const;

 private:
  bool cover(const Model& model, Proposal& proposal) const;

  const PlanRequest& request_;
  std::vector<uint32_t> sites_;    // ascending
  std::vector<uint32_t> holders_;  // ops of initializers with a gradient
};

}  // namespace weft::plan
