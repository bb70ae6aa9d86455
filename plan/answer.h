// What the search found, as a plan with all that there is to say of it.
#pragma once

#include "plan/request.h"
#include "plan/search.h"
#include "plan/worked.h"

namespace weft::plan {

Plan make_answer(const Workshop& workshop, const Found& found);

}  // namespace weft::plan
