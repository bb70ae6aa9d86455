// What people are told of a plan of replicas.
#pragma once

#include <string>
#include <vector>

#include "plan/replicas.h"

namespace weft::plan {

// "1 peer", "2 peers".
std::string number_of(size_t count, const char* one);

// Of several, a summary and each of them; of one, what its pipeline says.
std::vector<std::string> explain_replicas(const ReplicasRequest& request, const ReplicasPlan& plan);

}  // namespace weft::plan
