// A series that goes on for ever in bounded memory: of many points, each stands for as many that came one
// after another, and is the last of them. So what is shown is what was, and the newest point is always there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::ui {

template <typename Point>
class Thinned {
 public:
  explicit Thinned(size_t points_max) : points_max_(points_max) {}  // REQUIRES: at least 2, even

  void add(const Point& point) {
    if (in_last_ == each_ || points_.empty()) {
      if (points_.size() == points_max_) halve();
      in_last_ = 0;
      points_.push_back(point);
    }
    points_.back() = point;
    ++in_last_;
  }
  // Takes away the newest as long as they are so.
  template <typename Is>
  void drop_while(const Is& is) {
    const size_t before = points_.size();
    while (!points_.empty() && is(points_.back())) points_.pop_back();
    if (points_.size() == before) return;
    in_last_ = each_;
    ++generation_;
  }

  std::span<const Point> points() const { return points_; }
  // Another one: points that were read before stand for others now. With the same, only the last of them may
  // have become another, and more may have come.
  uint64_t generation() const { return generation_; }

 private:
  void halve() {
    for (size_t i = 0; 2 * i + 1 < points_.size(); ++i) points_[i] = points_[2 * i + 1];
    points_.resize(points_.size() / 2);
    each_ *= 2;
    ++generation_;
  }

  const size_t points_max_;
  std::vector<Point> points_;
  size_t each_ = 1;     // that a point stands for
  size_t in_last_ = 0;  // how many the last one does
  uint64_t generation_ = 1;
};

}  // namespace weft::ui
