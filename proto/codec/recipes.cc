// How blobs come of other tensors.
#include <set>

#include "proto/codec/wire.h"

namespace weft::proto {

namespace {

using Part = dag::Rounding::Part;

void put(const dag::Recipe::Cut& from, wire::Cut& to) {
  to.set_first(from.first);
  to.set_size(from.size);
  to.set_stride(from.stride);
  to.set_count(from.count);
}

void put(const dag::Rounding& from, wire::Rounding& to) {
  to.set_part(put_enum<wire::RoundingPart>(from.part));
  if (from.part == Part::Halves) return;
  to.set_bits(static_cast<uint32_t>(from.bits));
  to.set_block(static_cast<uint32_t>(from.block));
  to.set_scale(put_enum<wire::DType>(from.scale));
}
Status get(const wire::Rounding& from, dag::Rounding& to) {
  Reader read("Rounding");
  read.enumerator(from.part(), to.part, Part::Halves, "part");
  if (to.part == Part::Halves) return read.status();
  read.require(from.bits() == 4 || from.bits() == 8, "bits", "neither 4 nor 8");
  read.require(from.block() <= dag::kRoundedBlockMax, "block", "more than 65536");
  read.enumerator(from.scale(), to.scale, dag::DType::BF16, "scale");
  if (!read.good()) return read.status();
  to.bits = static_cast<int>(from.bits());
  to.block = from.block();
  return {};
}

}  // namespace

void put(const BlobRecipe& from, wire::BlobRecipe& to) {
  to.set_sha256(put_bytes(from.sha256));
  to.set_source(put_bytes(from.recipe.source));
  to.set_source_size(from.recipe.source_size);
  if (from.recipe.cut) put(*from.recipe.cut, *to.mutable_cut());
  if (from.recipe.rounding) put(*from.recipe.rounding, *to.mutable_rounding());
}
Status get(const wire::BlobRecipe& from, BlobRecipe& to) {
  Reader read("BlobRecipe");
  read.digest(from.sha256(), to.sha256, "sha256");
  read.digest(from.source(), to.recipe.source, "source");
  to.recipe.source_size = from.source_size();
  if (from.has_cut())
    to.recipe.cut = {from.cut().first(), from.cut().size(), from.cut().stride(), from.cut().count()};
  if (from.has_rounding()) {
    WEFT_TRY_STATUS(read.status());
    WEFT_TRY_STATUS(get(from.rounding(), to.recipe.rounding.emplace()));
  }
  WEFT_TRY_STATUS(read.status());
  WEFT_TRY_STATUS(dag::bytes_of(to.recipe));
  return {};
}

void put_recipes(const std::vector<BlobRecipe>& from, wire::Recipes& to) {
  put_list(from, *to.mutable_recipes());
}
void get_recipes(const wire::Recipes& from, std::vector<BlobRecipe>& to, Reader& read) {
  read.list(from.recipes(), to, kRecipesMax, "recipes");
  std::set<Digest> made;
  for (const BlobRecipe& one : to)
    read.require(made.insert(one.sha256).second, "recipes", "a blob is there twice");
}

}  // namespace weft::proto
