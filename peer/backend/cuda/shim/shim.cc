#include "peer/backend/cuda/shim/shim.h"

#include <sys/mman.h>

#include <algorithm>
#include <boost/context/detail/fcontext.hpp>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "peer/backend/cuda/kernels/launch.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace weft::peer::cuda::shim {
namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr uint32_t kWarp = 32;
constexpr uint32_t kThreadsMax = 1024;
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

// TSan writes down which functions a thread is in. Where a fiber begins and ends, or hands over, is not told
// to it: to TSan all threads of a grid are one fiber, with a record that goes with it. A fault leaves
// functions there that never return.
#if defined(__SANITIZE_THREAD__)
#define WEFT_UNSEEN __attribute__((no_sanitize("thread")))
class OneFiber {
 public:
  WEFT_UNSEEN OneFiber() { __tsan_switch_to_fiber(mine_, 0); }
  WEFT_UNSEEN ~OneFiber() {
    __tsan_switch_to_fiber(before_, 0);
    __tsan_destroy_fiber(mine_);
  }
  OneFiber(const OneFiber&) = delete;
  OneFiber& operator=(const OneFiber&) = delete;

 private:
  void* const before_ = __tsan_get_current_fiber();
  void* const mine_ = __tsan_create_fiber(0);
};
#else
#define WEFT_UNSEEN
struct OneFiber {};
#endif

// Who touched an element of shared memory last, and between which barriers.
struct Touch {
  int32_t lane = -1;
  uint32_t block_epoch = 0, warp_epoch = 0;
};

// Who read it since the last barrier.
struct Readers {
  Touch last;
  bool others = false;       // of the last one's warp, since the warp's last barrier
  bool other_warps = false;  // since the block's
};

}  // namespace

struct Region {
  const char* name;
  int64_t count;
  uint32_t element_size;
  std::vector<unsigned char> bytes;
  std::vector<Touch> written;
  std::vector<Readers> readers;
};

namespace {

enum class Waits : uint8_t { No, ForBlock, ForWarp, Done };

struct Lane {
  fcontext_t context = nullptr;
  Waits waits = Waits::No;
  Site site;
  // Of an exchange.
  unsigned char value[8] = {};
  uint32_t size = 0;
  int from = -1;        // -1: a barrier or ballot
  bool orders = false;  // a barrier: memory, too
  bool predicate = false;
  uint32_t ballot = 0;
  void* fake_stack = nullptr;  // the sanitizer's
};

// Stacks of fibers, kept for the next block.
class Stacks {
 public:
  ~Stacks() {
    for (void* stack : stacks_) ::munmap(stack, kStackBytes);
  }
  std::byte* bottom(uint32_t i) {
    while (stacks_.size() <= i) {
      void* stack = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (stack == MAP_FAILED) throw std::bad_alloc();
      stacks_.push_back(stack);
    }
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(stacks_[i], kStackBytes);  // of a fiber that was given up
#endif
    return static_cast<std::byte*>(stacks_[i]);
  }

 private:
  std::vector<void*> stacks_;
};

std::string at(const Site& site) {
  const std::string_view file = site.file_name();
  return std::string(file.substr(file.rfind('/') + 1)) + ":" + std::to_string(site.line()) + ":" +
         std::to_string(site.column());
}

class Block {
 public:
  Block(const Entry& kernel, const void* parameters, uint32_t threads, uint64_t seed)
      : kernel_(kernel),
        parameters_(parameters),
        lanes_(threads),
        warp_epochs_((threads + kWarp - 1) / kWarp),
        rng_(seed, 0) {}

  // Empty: all lanes returned.
  std::string run(const Coordinates& coordinates);

  // Of the lane that runs.
  [[noreturn]] void fault(std::string what) {
    fault_ = std::move(what);
    leave();
    __builtin_unreachable();
  }
  const Coordinates& coordinates() const { return coordinates_; }
  void wait(Waits for_whom, const Site& site) {
    Lane& lane = lanes_[current_];
    lane.waits = for_whom;
    lane.site = site;
    leave();
  }
  Lane& lane() { return lanes_[current_]; }
  Lane& lane(uint32_t i) { return lanes_[i]; }
  uint32_t current() const { return current_; }
  Region* region(const void* declaration, int64_t count, uint32_t element_size, const char* name);
  void read(Region& region, int64_t index, void* to);
  void write(Region& region, int64_t index, const void* from);

 private:
  WEFT_UNSEEN static void start(transfer_t transfer);
  WEFT_UNSEEN void enter(uint32_t i);
  WEFT_UNSEEN void leave();
  std::vector<uint32_t> draw_order();
  bool release();
  void release_block();
  bool release_warp(uint32_t warp);
  void note_reader(Readers& readers) const;
  static std::string element(const Region& region, int64_t index) {
    return std::string(region.name) + "[" + std::to_string(index) + "]";
  }
  Touch touch() const {
    return {static_cast<int32_t>(current_), block_epoch_, warp_epochs_[current_ / kWarp]};
  }
  // Whether nothing orders the lane that runs behind what `other` did.
  bool races(const Touch& other) const;

  const Entry& kernel_;
  const void* parameters_;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> warp_epochs_;
  Rng rng_;
  Coordinates coordinates_;
  uint32_t current_ = 0, block_epoch_ = 1;
  std::string fault_;
  fcontext_t scheduler_ = nullptr;
  [[maybe_unused]] void* scheduler_fake_stack_ = nullptr;  // these three: by ASan alone
  [[maybe_unused]] const void* scheduler_bottom_ = nullptr;
  [[maybe_unused]] size_t scheduler_size_ = 0;
  std::map<const void*, std::unique_ptr<Region>> regions_;
};

thread_local Block* t_block = nullptr;
thread_local Stacks t_stacks;

void Block::start(transfer_t transfer) {
  Block& block = *static_cast<Block*>(transfer.data);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_bottom_, &block.scheduler_size_);
#endif
  block.scheduler_ = transfer.fctx;
  block.kernel_.on_host(block.kernel_.function, block.parameters_);
  block.lane().waits = Waits::Done;
  block.leave();
}

// The scheduler's side of the switch, and the lane's.
void Block::enter(uint32_t i) {
  current_ = i;
  coordinates_.thread = {i, 0, 0};
  Lane& lane = lanes_[i];
  std::byte* bottom = t_stacks.bottom(i);
  if (lane.context == nullptr) lane.context = make_fcontext(bottom + kStackBytes, kStackBytes, &Block::start);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, bottom, kStackBytes);
#endif
  const transfer_t back = jump_fcontext(lane.context, this);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
  lane.context = back.fctx;
}

void Block::leave() {
#if defined(__SANITIZE_ADDRESS__)
  const bool ends = lane().waits == Waits::Done || !fault_.empty();
  __sanitizer_start_switch_fiber(ends ? nullptr : &lane().fake_stack, scheduler_bottom_, scheduler_size_);
#endif
  const transfer_t again = jump_fcontext(scheduler_, nullptr);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(lane().fake_stack, &scheduler_bottom_, &scheduler_size_);
#endif
  scheduler_ = again.fctx;
}

// Four ways, for each hides what another shows: forwards, backwards, warp after warp in any order, any order.
std::vector<uint32_t> Block::draw_order() {
  std::vector<uint32_t> order(lanes_.size());
  std::iota(order.begin(), order.end(), 0u);
  const uint64_t way = rng_.below(4);
  if (way == 1) std::reverse(order.begin(), order.end());
  const size_t step = way == 2 ? std::min<size_t>(kWarp, order.size()) : 1;
  if (way < 2) return order;
  const size_t pieces = order.size() / step;  // a warp that is not whole stays last
  for (size_t i = pieces; i-- > 1;) {
    const size_t j = rng_.below(i + 1);
    if (i != j)
      std::swap_ranges(order.begin() + static_cast<ptrdiff_t>(i * step),
                       order.begin() + static_cast<ptrdiff_t>((i + 1) * step),
                       order.begin() + static_cast<ptrdiff_t>(j * step));
  }
  return order;
}

std::string Block::run(const Coordinates& coordinates) {
  coordinates_ = coordinates;
  do {
    for (const uint32_t i : draw_order()) {
      if (lanes_[i].waits != Waits::No) continue;
      enter(i);
      if (!fault_.empty())
        return std::string(kernel_.name) + ", block " + std::to_string(coordinates_.block.x) + "," +
               std::to_string(coordinates_.block.y) + ", thread " + std::to_string(i) + ": " + fault_;
    }
  } while (release());
  if (!fault_.empty())
    return std::string(kernel_.name) + ", block " + std::to_string(coordinates_.block.x) + "," +
           std::to_string(coordinates_.block.y) + ": " + fault_;
  return {};
}

// Nobody can run: whoever waits with all that it waits for goes on. False: nobody does.
bool Block::release() {
  bool any = false, all_done = true;
  for (const Lane& lane : lanes_) all_done = all_done && lane.waits == Waits::Done;
  if (all_done) return false;
  for (uint32_t warp = 0; warp < warp_epochs_.size(); ++warp) {
    any = release_warp(warp) || any;
    if (!fault_.empty()) return false;
  }
  if (any) return true;
  release_block();
  return fault_.empty();
}

void Block::release_block() {
  const Lane* first = nullptr;
  for (const Lane& lane : lanes_)
    if (lane.waits == Waits::ForBlock && first == nullptr) first = &lane;
  for (const Lane& lane : lanes_) {
    if (lane.waits == Waits::Done)
      fault_ = "a barrier that not all threads reach, at " + at(first->site);
    else if (at(lane.site) != at(first->site))
      fault_ =
          "a divergent barrier: some threads wait at " + at(first->site) + ", others at " + at(lane.site);
    if (!fault_.empty()) return;
  }
  ++block_epoch_;
  for (Lane& lane : lanes_) lane.waits = Waits::No;
}

bool Block::release_warp(uint32_t warp) {
  const uint32_t begin = warp * kWarp, end = begin + kWarp;
  const Lane* waiting = nullptr;
  for (uint32_t i = begin; i < std::min<uint32_t>(end, static_cast<uint32_t>(lanes_.size())); ++i)
    if (lanes_[i].waits == Waits::ForWarp) waiting = &lanes_[i];
  if (waiting == nullptr) return false;
  if (end > lanes_.size()) {
    fault_ = "an exchange in a warp of fewer than 32 threads, at " + at(waiting->site);
    return false;
  }
  for (uint32_t i = begin; i < end; ++i) {
    const Lane& lane = lanes_[i];
    if (lane.waits == Waits::Done)
      fault_ = "thread " + std::to_string(i) + " is gone before an exchange at " + at(waiting->site);
    else if (lane.waits == Waits::ForBlock)
      fault_ = "thread " + std::to_string(i) + " waits at a barrier, others of its warp in an exchange at " +
               at(waiting->site);
    else if (at(lane.site) != at(waiting->site))
      fault_ = "a divergent exchange: at " + at(waiting->site) + " and at " + at(lane.site);
    if (!fault_.empty()) return false;
  }
  if (waiting->orders) ++warp_epochs_[warp];
  uint32_t votes = 0;
  for (uint32_t i = 0; i < kWarp; ++i) {
    votes |= lanes_[begin + i].predicate ? 1u << i : 0u;
    lanes_[begin + i].predicate = false;
  }
  unsigned char values[kWarp][8];
  for (uint32_t i = 0; i < kWarp; ++i) std::memcpy(values[i], lanes_[begin + i].value, 8);
  for (uint32_t i = 0; i < kWarp; ++i) {
    Lane& lane = lanes_[begin + i];
    if (lane.from >= 0) std::memcpy(lane.value, values[lane.from], 8);
    lane.ballot = votes;
    lane.waits = Waits::No;
  }
  return true;
}

Region* Block::region(const void* declaration, int64_t count, uint32_t element_size, const char* name) {
  std::unique_ptr<Region>& region = regions_[declaration];
  if (!region) {
    const auto n = static_cast<size_t>(count);
    region = std::make_unique<Region>(Region{name, count, element_size,
                                             std::vector<unsigned char>(n * element_size, 0xA5),
                                             std::vector<Touch>(n), std::vector<Readers>(n)});
  }
  return region.get();
}

bool Block::races(const Touch& other) const {
  if (other.lane < 0 || other.lane == static_cast<int32_t>(current_) || other.block_epoch != block_epoch_)
    return false;
  const uint32_t warp = current_ / kWarp;
  return static_cast<uint32_t>(other.lane) / kWarp != warp || other.warp_epoch == warp_epochs_[warp];
}

void Block::read(Region& region, int64_t index, void* to) {
  if (index < 0 || index >= region.count) fault_index(region.name, index, region.count);
  const auto i = static_cast<size_t>(index);
  if (region.written[i].lane < 0) fault(element(region, index) + " is read and was never written");
  if (races(region.written[i]))
    fault(element(region, index) + " is read, and thread " + std::to_string(region.written[i].lane) +
          " wrote it since the last barrier");
  note_reader(region.readers[i]);
  std::memcpy(to, region.bytes.data() + i * region.element_size, region.element_size);
}

void Block::note_reader(Readers& readers) const {
  const Touch now = touch();
  const Touch before = readers.last;
  if (before.lane < 0 || before.block_epoch != now.block_epoch) {
    readers = {now, false, false};
  } else if (static_cast<uint32_t>(before.lane) / kWarp != current_ / kWarp) {
    readers = {now, false, true};
  } else {
    readers.others = before.warp_epoch == now.warp_epoch && (readers.others || before.lane != now.lane);
    readers.last = now;
  }
}

void Block::write(Region& region, int64_t index, const void* from) {
  if (index < 0 || index >= region.count) fault_index(region.name, index, region.count);
  const auto i = static_cast<size_t>(index);
  if (races(region.written[i]))
    fault(element(region, index) + " is written, and so it was by thread " +
          std::to_string(region.written[i].lane) + " since the last barrier");
  const Readers& readers = region.readers[i];
  const bool now = readers.last.lane >= 0 && readers.last.block_epoch == block_epoch_;
  const bool mine = now && static_cast<uint32_t>(readers.last.lane) / kWarp == current_ / kWarp;
  const bool in_warp = mine && readers.others && readers.last.warp_epoch == warp_epochs_[current_ / kWarp];
  if (races(readers.last) || (now && readers.other_warps) || in_warp)
    fault(element(region, index) + " is written, and another thread reads it without a barrier between");
  region.written[i] = touch();
  std::memcpy(region.bytes.data() + i * region.element_size, from, region.element_size);
}

Block& block() {
  WEFT_CHECK_MSG(t_block != nullptr, "code of a kernel runs outside of a kernel");
  return *t_block;
}

void need_whole_warp(uint32_t mask, const char* what) {
  if (mask != 0xffffffffu) block().fault(std::string(what) + " of some lanes of a warp");
}

}  // namespace

void fault(const char* what) { block().fault(what); }
void fault_index(const char* what, int64_t index, int64_t count) {
  block().fault(std::string(what) + ": index " + std::to_string(index) + " of " + std::to_string(count));
}

const Coordinates& here() { return block().coordinates(); }

void barrier(const Site& site) { block().wait(Waits::ForBlock, site); }

void warp_barrier(uint32_t mask, const Site& site) {
  need_whole_warp(mask, "a barrier");
  Block& all = block();
  all.lane().from = -1;
  all.lane().orders = true;
  all.wait(Waits::ForWarp, site);
  all.lane().orders = false;
}

void exchange(uint32_t mask, const void* mine, void* theirs, uint32_t size, int from, const Site& site) {
  need_whole_warp(mask, "an exchange");
  Block& all = block();
  std::memcpy(all.lane().value, mine, size);
  all.lane().from = from;
  all.wait(Waits::ForWarp, site);
  std::memcpy(theirs, all.lane().value, size);
}

uint32_t ballot(uint32_t mask, bool predicate, const Site& site) {
  need_whole_warp(mask, "a vote");
  Block& all = block();
  all.lane().from = -1;
  all.lane().predicate = predicate;
  all.wait(Waits::ForWarp, site);
  return all.lane().ballot;
}

Region* shared_region(const void* declaration, int64_t count, uint32_t element_size, const char* name) {
  return block().region(declaration, count, element_size, name);
}
void read_shared(Region* region, int64_t index, void* to) { block().read(*region, index, to); }
void write_shared(Region* region, int64_t index, const void* from) { block().write(*region, index, from); }

std::string run_grid(const Entry& kernel, const Grid& grid, const void* parameters, uint64_t seed) {
  WEFT_CHECK_MSG(t_block == nullptr, "a kernel launches another");
  if (grid.threads < 1 || grid.threads > kThreadsMax || grid.blocks < 1 || grid.blocks > 0x7fffffffu ||
      grid.blocks_y < 1 || grid.blocks_y > 65535)
    return std::string(kernel.name) + ": a grid of " + std::to_string(grid.blocks) + " x " +
           std::to_string(grid.blocks_y) + " blocks of " + std::to_string(grid.threads) + " threads";
  [[maybe_unused]] const OneFiber fiber;
  for (uint32_t y = 0; y < grid.blocks_y; ++y)
    for (uint32_t x = 0; x < grid.blocks; ++x) {
      Block one(kernel, parameters, grid.threads, seed + ((uint64_t{y} << 32) | x));
      t_block = &one;
      std::string fault = one.run({{}, {x, y, 0}, {grid.threads, 1, 1}, {grid.blocks, grid.blocks_y, 1}});
      t_block = nullptr;
      if (!fault.empty()) return fault;
    }
  return {};
}

}  // namespace weft::peer::cuda::shim
