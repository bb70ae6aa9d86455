#include "dag/recipe.h"

namespace weft::dag {
namespace {

constexpr uint64_t kSourceMax = uint64_t{1} << 43;  // bytes

Result<uint64_t> bytes_cut(const Recipe& recipe) {
  if (!recipe.cut) return recipe.source_size;
  const Recipe::Cut& cut = *recipe.cut;
  const uint64_t size = recipe.source_size;
  if (cut.size == 0 || cut.count == 0 || cut.first > size || cut.size > size - cut.first)
    return fail(ErrorCode::OutOfRange, "a recipe takes what its source has not");
  if (cut.count > 1 && (cut.stride < cut.size || cut.stride > size ||
                        cut.count - 1 > (size - cut.first - cut.size) / cut.stride))
    return fail(ErrorCode::OutOfRange, "a recipe takes what its source has not, or some of it twice");
  const uint64_t taken = cut.size * cut.count;
  if (size / taken > kCutOfMax) return fail(ErrorCode::OutOfRange, "a recipe takes next to nothing");
  return taken;
}

}  // namespace

Result<uint64_t> bytes_of(const Recipe& recipe) {
  if (recipe.source_size == 0 || recipe.source_size > kSourceMax)
    return fail(ErrorCode::OutOfRange, "a recipe of a source without bytes, or of too many");
  if (!recipe.cut && !recipe.rounding) return fail(ErrorCode::OutOfRange, "a recipe that changes nothing");
  WEFT_TRY(const uint64_t taken, bytes_cut(recipe));
  if (!recipe.rounding) return taken;
  const auto made =
      taken % sizeof(float) == 0 ? rounded_bytes(*recipe.rounding, taken / sizeof(float)) : std::nullopt;
  if (!made || *made == 0) return fail(ErrorCode::OutOfRange, "a recipe rounds what are no whole blocks");
  return *made;
}

}  // namespace weft::dag
