// A small form of every family of torchvision's models, and PyTorch's losses for it (tests/numerics/families:
// make_families.py made the files and wrote the losses down).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "peer/backend/backend.h"
#include "tests/support/models.h"

namespace weft {

std::vector<std::string> families();
// By family: "float64" and "float32", PyTorch's losses of two steps.
const nlohmann::json& family_losses();
// Differentiated, with a loss, its weights, and a batch.
test::Model family(const std::string& name);
// The losses of two steps on the backend; what fails is said as a failure of the test.
std::vector<double> two_family_steps(const std::string& name, peer::Backend& backend);
// In double both compute the same; float32 is as far off as PyTorch's own. In the second step one Relu that
// comes out on its other side moves every gradient by some thousandths.
void expect_near_pytorch(const std::string& name, const std::vector<double>& losses);

}  // namespace weft
