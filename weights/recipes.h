// What a recipe (dag/recipe.h) makes of a tensor's bytes, as they pass by.
#pragma once

#include <functional>

#include "base/result.h"
#include "dag/recipe.h"
#include "data/npz_writer.h"

namespace weft::weights {

// Hands on the bytes of the recipe's source, in order.
using ReadSource = std::function<Status(const data::ByteSink& sink)>;

// Hands on what it makes, in order and in pieces of at most 1 MiB; holds about 2 MiB. The source is read no
// further than need be. Errors: OutOfRange as dag::bytes_of; Corrupted where the source has another size;
// what reading and the sink say.
Status follow(const dag::Recipe& recipe, const ReadSource& source, const data::ByteSink& sink);

}  // namespace weft::weights
