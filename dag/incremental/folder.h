// Internal to dag/incremental: computes values that are the same for all tokens.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "dag/incremental/incremental.h"

namespace weft::dag::incremental {

class Folder {
 public:
  // Both outlive it.
  Folder(const Graph& graph, const IncrementalOptions& options) : graph_(graph), options_(options) {}

  // REQUIRES: a free value. Errors: Unsupported for an initializer of which no value is known;
  // ResourceExhausted where all folds together compute more than any mask takes; what `evaluate` says.
  Result<Tensor> fold(ValueId value);
  const std::set<std::string>& read() const { return read_; }  // initializers

 private:
  // Ops that the value hangs on and that are not known, in order; and how many of them read each value.
  std::vector<uint32_t> find_wanted(ValueId value);
  Result<Tensor> leaf(const Op& op);
  Result<Tensor> weight(const std::string& name) const;
  Status compute(const Op& op);
  void let_go(const Op& op);
  void keep(ValueId value, const Tensor& tensor);

  const Graph& graph_;
  const IncrementalOptions& options_;
  std::map<ValueId, Tensor> made_;  // under way
  std::map<ValueId, int> readers_;  // that are still to come
  std::map<ValueId, Tensor> kept_;  // what was asked for: the next mask may hang on it
  std::set<std::string> read_;
  int64_t kept_bytes_ = 0, elements_ = 0;
};

}  // namespace weft::dag::incremental
