// Which tensors a stage expects of its neighbours. Pure.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "dag/incremental/incremental.h"
#include "peer/machine/agreements.h"
#include "peer/machine/gradient_sums.h"
#include "proto/messages.h"

namespace weft::peer {

class ExpectedTensors {
 public:
  explicit ExpectedTensors(std::shared_ptr<const proto::AssignStage> assignment)
      : assignment_(std::move(assignment)),
        agreed_(agreed_weights(*assignment_)),
        sums_(summed_tensors(*assignment_)) {}

  // What comes on each edge of a served model's passes, once whoever derives the model knows.
  void expect(std::vector<dag::RowSpec> serve_edges) { serve_edges_ = std::move(serve_edges); }
  // False: there is no such edge. Errors: the edge's tensors are others.
  Result<bool> expects(const proto::TensorHeader& header) const;

 private:
  std::shared_ptr<const proto::AssignStage> assignment_;
  std::vector<AgreedWeight> agreed_;
  std::vector<SummedTensor> sums_;
  std::vector<dag::RowSpec> serve_edges_;
};

}  // namespace weft::peer
