#include "dag/incremental/arrangement.h"

#include <algorithm>
#include <numeric>

namespace weft::dag::incremental {

namespace {

bool repeats(const std::vector<Arrangement::Span>& dim) {
  return std::any_of(dim.begin(), dim.end(), [](const auto& span) { return span.stride == 0; });
}

}  // namespace

Arrangement::Arrangement(const Shape& shape) : dims_(shape.size()) {
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d])
    if (shape[d] != 1) dims_[d] = {{shape[d], stride}};
}

bool Arrangement::repeats_in_last(size_t most) const {
  return std::any_of(dims_.end() - static_cast<std::ptrdiff_t>(std::min(most, dims_.size())), dims_.end(),
                     repeats);
}
bool Arrangement::repeats_before_last(size_t most) const {
  return std::any_of(dims_.begin(), dims_.end() - static_cast<std::ptrdiff_t>(std::min(most, dims_.size())),
                     repeats);
}

std::vector<Arrangement::Span> Arrangement::spans() const {
  std::vector<Span> all;
  for (const auto& dim : dims_) all.insert(all.end(), dim.begin(), dim.end());
  return all;
}

void Arrangement::transpose(const Ints& perm) {
  std::vector<std::vector<Span>> dims;
  dims.reserve(perm.size());
  for (const int64_t from : perm) dims.push_back(dims_[static_cast<size_t>(from)]);
  dims_ = std::move(dims);
}

void Arrangement::expand(const Shape& shape) {
  dims_.insert(dims_.begin(), shape.size() - dims_.size(), {});
  for (size_t d = 0; d < shape.size(); ++d)
    if (dims_[d].empty() && shape[d] != 1) dims_[d] = {{shape[d], 0}};
}

bool Arrangement::reshape(const Shape& shape) {
  std::vector<Span> left = spans();
  size_t next = 0;
  std::vector<std::vector<Span>> dims;
  for (int64_t wanted : shape) {
    auto& dim = dims.emplace_back();
    while (wanted > 1) {
      if (next == left.size()) return false;
      Span& span = left[next];
      if (wanted % span.size == 0) {
        dim.push_back(span);
        wanted /= span.size;
        ++next;
      } else if (span.size % wanted == 0) {
        span.size /= wanted;
        dim.push_back({wanted, span.stride * span.size});
        wanted = 1;
      } else {
        return false;
      }
    }
  }
  dims_ = std::move(dims);
  return next == left.size();
}

void Arrangement::drop_repeats() {
  for (auto& dim : dims_) std::erase_if(dim, [](const Span& span) { return span.stride == 0; });
}

ValueId Arrangement::make(GraphBuilder& builder, ValueId source) const {
  const std::vector<Span> all = spans();
  std::vector<size_t> by_stride(all.size());
  std::iota(by_stride.begin(), by_stride.end(), size_t{0});
  std::sort(by_stride.begin(), by_stride.end(),
            [&](size_t a, size_t b) { return all[a].stride > all[b].stride; });
  Shape apart;
  Ints perm(all.size());
  for (size_t i = 0; i < by_stride.size(); ++i) {
    apart.push_back(all[by_stride[i]].size);
    perm[by_stride[i]] = static_cast<int64_t>(i);
  }
  if (std::is_sorted(perm.begin(), perm.end())) return source;
  const ValueId reshaped = builder.add(OpKind::Reshape, {source}, {{Attr::Shape, std::move(apart)}});
  return builder.add(OpKind::Transpose, {reshaped}, {{Attr::Perm, std::move(perm)}});
}

}  // namespace weft::dag::incremental
