// What holds of every plan (law 5).
#pragma once

#include "plan/plan.h"

namespace weft::test {

// Every op in one stage, a device with one at most, links as the pieces have them, memory within each device.
void expect_lawful(const plan::PlanRequest& request, const plan::Plan& plan);

}  // namespace weft::test
