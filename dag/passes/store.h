// Weights that nobody trains, kept in fewer bits than they are computed in.
#pragma once

#include <map>
#include <string>

#include "dag/graph.h"
#include "dag/op_table.h"
#include "dag/stored_matrix.h"

namespace weft::dag {

// How one lies in memory, and under which names its tensors come.
struct StoredForm {
  struct Part {
    std::string name{};  // of its initializer; empty: there is none
    TensorSpec spec{};
    bool operator==(const Part&) const = default;
  };
  StoredMatrix matrix;
  Part numbers, scale{}, zero{};
  bool operator==(const StoredForm&) const = default;
};
// By the initializer, which is F32 and of the matrix's shape in the graph.
using StoredForms = std::map<std::string, StoredForm, std::less<>>;

// Of `forms` those that this graph can have: of initializers that are Frozen; and of halves only where every
// op that reads one multiplies with it from the right or reads rows of it, so that it is never whole in
// float32.
StoredForms worth_storing(const Graph& graph, StoredForms forms);

// The graph that reads these initializers as they are stored: in place of each come its tensors, products
// with it are StoredMatMuls, its rows StoredWeights, and whatever else reads it reads a StoredWeight of its
// own. The same numbers are computed. REQUIRES: none of them is trained; differentiate() comes after.
Graph store(const Graph& graph, const StoredForms& forms, const OpTable& table);

}  // namespace weft::dag
