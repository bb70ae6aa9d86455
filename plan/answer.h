// What the search found, as a plan with all that there is to say of it.
#pragma once

#include "plan/evaluator.h"
#include "plan/request.h"
#include "plan/search.h"

namespace weft::plan {

Plan make_answer(const Evaluator& evaluator, const Found& found);

}  // namespace weft::plan
