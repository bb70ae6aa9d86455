// What one machine that nothing disturbs answers.
#pragma once

#include <string>

#include "web/service.h"

namespace weft::test {

// The text, with HashingDecoder of that context and 256 tokens, which are bytes.
std::string text_of_one_machine(web::GenerateRequest request, int64_t context);

}  // namespace weft::test
