// What a queue of frames becomes: the bytes of the frames in their order, in records.
#include "net/send_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <string>

#include "base/rng.h"
#include "net/tls.h"

namespace weft::net {
namespace {

OutFrame frame_of(uint8_t kind, size_t head, size_t body, bool goes_first = false) {
  OutFrame frame{
      .kind = kind, .head = std::vector<std::byte>(head, std::byte{kind}), .goes_first = goes_first};
  const auto bytes =
      std::make_shared<std::vector<std::byte>>(body, std::byte{static_cast<uint8_t>(kind + 1)});
  frame.body = {bytes, *bytes};
  return frame;
}

// As net/frame.h says it.
std::vector<std::byte> bytes_of(const OutFrame& frame) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(frame.payload_size() >> (8 * i)));
  bytes.push_back(std::byte{frame.kind});
  bytes.insert(bytes.end(), frame.head.begin(), frame.head.end());
  bytes.insert(bytes.end(), frame.body.bytes.begin(), frame.body.bytes.end());
  return bytes;
}

// The order by walking along the whole queue; a frame of which a byte was taken stays in front.
class Naive {
 public:
  void push(const OutFrame& frame) {
    auto at = frames_.end();
    if (frame.goes_first)
      at = std::find_if(frames_.begin(), frames_.end(),
                        [](const Waiting& each) { return !each.goes_first && each.taken == 0; });
    frames_.insert(at, {bytes_of(frame), frame.goes_first});
  }
  std::vector<std::byte> take(size_t size) {
    std::vector<std::byte> bytes;
    while (bytes.size() < size && !frames_.empty()) {
      Waiting& front = frames_.front();
      bytes.push_back(front.bytes[front.taken++]);
      if (front.taken == front.bytes.size()) frames_.pop_front();
    }
    return bytes;
  }
  size_t size() const {
    size_t size = 0;
    for (const Waiting& each : frames_) size += each.bytes.size() - each.taken;
    return size;
  }

 private:
  struct Waiting {
    std::vector<std::byte> bytes;
    bool goes_first = false;
    size_t taken = 0;
  };
  std::list<Waiting> frames_;
};

TEST(SendQueue, RecordsHoldTheFramesInTheirOrder) {
  const uint64_t seed = 29;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  SendQueue queue;
  Naive naive;
  uint64_t pushed = 0;
  for (int turn = 0; turn < 2000; ++turn) {
    if (queue.empty() || rng.below(3) == 0) {
      const size_t head = rng.below(40), body = rng.below(4) == 0 ? rng.below(5 * kTlsRecordSize) : 0;
      const OutFrame frame = frame_of(static_cast<uint8_t>(rng.below(200)), head, body, rng.below(3) == 0);
      queue.push(frame);
      naive.push(frame);
      ++pushed;
    } else {
      const SharedBytes record = queue.next_record();
      ASSERT_GT(record.bytes.size(), 0u);
      ASSERT_LE(record.bytes.size(), kTlsRecordSize);
      const auto expected = naive.take(record.bytes.size());
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), record.bytes.begin(), record.bytes.end()));
    }
    ASSERT_EQ(queue.size(), naive.size());
  }
  while (!queue.empty()) (void)queue.next_record();
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_EQ(queue.memory(), 0u);
  EXPECT_EQ(queue.frames_taken(), pushed);
}

TEST(SendQueue, ABodyOfSomeRecordsIsNotCopied) {
  SendQueue queue;
  const OutFrame frame = frame_of(7, 10, 2 * kTlsRecordSize + 100);
  queue.push(frame);
  EXPECT_EQ(queue.next_record().bytes.size(), kFrameHeaderSize + 10) << "ends before the body";
  EXPECT_EQ(queue.next_record().bytes.data(), frame.body.bytes.data());
  EXPECT_EQ(queue.next_record().bytes.data(), frame.body.bytes.data() + kTlsRecordSize);
  EXPECT_EQ(queue.next_record().bytes.size(), 100u);
  EXPECT_TRUE(queue.empty());
}

TEST(SendQueue, TheLastRecordOfABodyKeepsItsOwner) {
  SendQueue queue;
  OutFrame frame = frame_of(7, 0, kTlsRecordSize);
  const std::weak_ptr<const void> body = frame.body.owner;
  queue.push(std::move(frame));
  frame = {};
  (void)queue.next_record();
  SharedBytes record = queue.next_record();
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(body.expired());
  record = {};
  EXPECT_TRUE(body.expired());
}

TEST(SendQueue, CountsEachFrameWithItsMemory) {
  SendQueue queue;
  const OutFrame empty = frame_of(1, 0, 0);
  EXPECT_TRUE(queue.has_room_for(empty, kFrameHeaderSize));
  EXPECT_FALSE(queue.has_room_for(empty, kFrameHeaderSize - 1));
  size_t count = 0;
  for (; queue.has_room_for(empty, 100'000); ++count) queue.push(empty);
  EXPECT_LT(count, 1000u) << "frames of five bytes";
  EXPECT_GT(count, 100u);
  queue.clear();
  EXPECT_TRUE(queue.has_room_for(empty, kFrameHeaderSize));
  EXPECT_EQ(queue.memory(), 0u);
}

}  // namespace
}  // namespace weft::net
