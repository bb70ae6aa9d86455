#include "peer/state.h"

#include <algorithm>
#include <utility>

namespace weft::peer {

namespace {

constexpr int64_t kPieceElements = int64_t{4} << 20;  // 16 MiB

dag::StateKey place_of(dag::StateKey key) {
  if (is_weight(key.slot)) key.slot = dag::StateSlot::Value;
  return key;
}

std::string name_of(const dag::StateKey& key) {
  return is_weight(key.slot) ? "initializer '" + key.name + "'" : "'" + to_string(key) + "'";
}

tl::unexpected<Error> other_spec(const dag::StateKey& key, const dag::TensorSpec& here,
                                 const dag::TensorSpec& given) {
  return fail(ErrorCode::InvalidArgument,
              name_of(key) + " is " + to_string(here) + ", the tensor given for it " + to_string(given));
}

}  // namespace

Status State::claim(std::span<const Claim> claims) {
  std::map<dag::StateKey, Entry> fresh;
  int64_t size = 0;
  for (const Claim& claim : claims) {
    const dag::StateKey key = place_of(claim.key);
    const Entry* here = find(key);
    if (const auto at = fresh.find(key); at != fresh.end()) here = &at->second;
    if (here != nullptr) {
      if (here->spec != claim.spec) return other_spec(key, here->spec, claim.spec);
      continue;
    }
    fresh[key] = {claim.spec, {nullptr, size}};
    size += align_up(backend_.storage_bytes(claim.spec, dag::Layout::Plain).value, backend_.alignment());
  }
  if (fresh.empty()) return {};
  WEFT_TRY(auto block, backend_.allocate({size}));
  for (auto& [key, entry] : fresh) {
    entry.view.memory = block.get();
    // A weight is written whole before it is read: until then it is memory that nobody has touched.
    if (!is_weight(key.slot)) WEFT_TRY_STATUS(backend_.fill_zero(entry.view, entry.spec));
  }
  blocks_.push_back(std::move(block));
  entries_.merge(fresh);
  bytes_ += Bytes{size};
  return {};
}

const State::Entry* State::find(const dag::StateKey& key) const {
  const auto at = entries_.find(place_of(key));
  return at == entries_.end() ? nullptr : &at->second;
}

Result<std::unique_ptr<Download>> State::begin_read(const dag::StateKey& key) const {
  const Entry* entry = find(key);
  if (entry == nullptr) return fail(ErrorCode::NotFound, "there is no " + name_of(key));
  return backend_.begin_download(entry->view, entry->spec, dag::Layout::Plain, {});
}

Result<dag::Tensor> State::read(const dag::StateKey& key) const {
  WEFT_TRY(const auto download, begin_read(key));
  return download->take();
}

Status State::write(const dag::StateKey& key, const dag::Tensor& tensor, const Written& written) {
  const Entry* entry = find(key);
  if (entry == nullptr) return fail(ErrorCode::NotFound, "there is no " + name_of(key));
  const bool widens = is_widened(tensor.spec(), entry->spec);
  if (!widens && tensor.spec() != entry->spec) return other_spec(key, entry->spec, tensor.spec());
  note_change();
  // Plain float32 lies element after element, wherever a backend keeps it.
  const bool in_pieces = entry->spec.dtype == dag::DType::F32;
  const int64_t count = tensor.element_count(),
                piece = in_pieces ? kPieceElements : std::max<int64_t>(count, 1);
  for (int64_t from = 0; from < count; from += piece) {
    dag::Tensor part = count <= piece ? tensor : tensor.elements(from, std::min(piece, count - from));
    const std::span<const std::byte> bytes = part.bytes();
    if (widens) part = widen_half(part);
    const Bytes before = backend_.storage_bytes({entry->spec.dtype, {from}}, dag::Layout::Plain);
    const View at{entry->view.memory, entry->view.offset + before.value};
    WEFT_TRY_STATUS(backend_.upload(std::exchange(part, {}), at, dag::Layout::Plain));
    if (written) written(bytes);
  }
  return {};
}

}  // namespace weft::peer
