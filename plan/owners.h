// How much of a model may lie on the machines of one owner: who has half of the weights has half of a secret.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/partition.h"
#include "plan/proposal.h"
#include "plan/request.h"

namespace weft::plan {

// Of the request's devices. Who names no owner stands for itself.
class OwnerShares {
 public:
  explicit OwnerShares(const PlanRequest& request);

  bool are_limited() const { return share_max_ < 1; }

  // By owner, the share of the parameters, trained or frozen, in bytes, that the machines of the stages with
  // that owner ever hold: those of a stage's own, and those that it is sent because it reads them.
  std::vector<double> shares(const std::vector<uint32_t>& stage_of_op,
                             const std::vector<uint32_t>& devices) const;
  bool are_kept(const std::vector<uint32_t>& stage_of_op, const std::vector<uint32_t>& devices) const;

  // The proposals so that what they estimate keeps the shares: each with its borders moved, and with devices
  // of other owners in the place of some, the slowest first, where one owner has too many of its stages. Best
  // first by `score`; as they are where nothing is limited.
  std::vector<Proposal> within(const Scope& scope, std::vector<Proposal> proposals) const;

  // Why it cannot be; empty: it is not for the owners.
  std::string why_not_kept() const;
  // "at most 50% of the parameters on one owner's machines", and that with ": anna 48%, ben 50%". Empty where
  // nothing is limited.
  std::string describe_limit() const;
  std::string describe(const std::vector<uint32_t>& stage_of_op, const std::vector<uint32_t>& devices) const;

 private:
  struct Held {
    int64_t bytes = 0;
    std::vector<uint32_t> ops;  // that have it on their stage's machine
  };
  size_t owners_needed() const;
  // `stages_of`: by owner, of the row.
  bool is_spread(const std::map<uint32_t, uint32_t>& stages_of, size_t stages) const;
  void limit(const Model& model, const std::vector<uint32_t>& row, PartitionProblem& problem) const;
  bool replace(const Scope& scope, const std::map<uint32_t, uint32_t>& stages_of,
               std::vector<uint32_t>& row) const;

  const PlanRequest& request_;
  double share_max_;
  std::vector<uint32_t> owner_of_;  // by device
  std::vector<std::string> names_;  // by owner
  std::vector<Held> held_;          // by initializer
  int64_t all_ = 0;
};

// By device a number that those of one owner share.
std::vector<uint32_t> owners_of(const ClusterView& cluster);

}  // namespace weft::plan
