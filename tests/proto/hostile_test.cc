// Bytes that nobody honest sends: they are refused, or they are a message like any other; nothing crashes,
// and memory stays within bounds.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "proto/codec/codec.h"
#include "tests/proto/samples.h"

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

namespace weft::proto {
namespace {

constexpr size_t kKinds = std::variant_size_v<AnyMessage>;
using ByteVector = std::vector<std::byte>;

// What decodes is within all bounds: it can be encoded, and decodes again. Whether it did.
bool expect_decent(const ByteVector& bytes) {
  const auto decoded = decode(bytes);
  if (!decoded) {
    EXPECT_FALSE(decoded.error().message.empty());
    return false;
  }
  const ByteVector again = encode(*decoded);
  const auto twice = decode(again);
  EXPECT_TRUE(twice.has_value()) << name_of(*decoded) << ": " << twice.error().message;
  if (twice) {
    EXPECT_EQ(encode(*twice), again);
  }
  return true;
}

void mutate(ByteVector& bytes, Rng& rng) {
  for (uint64_t times = 1 + rng.below(3); times > 0 && !bytes.empty(); --times) {
    const size_t at = rng.below(bytes.size());
    switch (rng.below(6)) {
      case 0:
        bytes[at] ^= static_cast<std::byte>(1u << rng.below(8));
        break;
      case 1:
        bytes[at] = static_cast<std::byte>(rng.below(256));
        break;
      case 2:
        bytes[at] = std::byte{0xFF};
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), static_cast<std::byte>(rng.below(256)));
        break;
      case 5: {  // a part of it once more
        const size_t from = rng.below(bytes.size());
        const ByteVector part(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                              bytes.begin() + static_cast<std::ptrdiff_t>(std::min(bytes.size(), from + 40)));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), part.begin(), part.end());
        break;
      }
    }
  }
}

Hello hello_with(const plan::Rates& rates) {
  Hello hello;
  hello.role = Role::Peer;
  hello.device.emplace();
  hello.device->rates = rates;
  return hello;
}

// The rates as they arrive; nothing when they are refused.
std::optional<plan::Rates> received(const plan::Rates& rates) {
  const auto decoded = decode(encode(Message{hello_with(rates)}));
  if (!decoded) return std::nullopt;
  return std::get<Hello>(*decoded).device->rates;
}

TEST(Hostile, RatesByUnitAreWithinBoundsOrRefused) {
  const plan::Rates four{2e9, 3e9, 4e9, 1e-6};
  const auto alone = received(four);
  ASSERT_TRUE(alone.has_value()) << "as a peer of an older minor tells them";
  EXPECT_FALSE(alone->by_unit());
  EXPECT_EQ(*alone, four);
  plan::Rates rates = four;
  rates.units.fill({1e9, 2e9, 3e9, 4e9});
  EXPECT_EQ(received(rates), rates);
  for (const double bad : {-1.0, 0.0, 0.5, 1e19, std::nan(""), HUGE_VAL})
    for (double plan::UnitRates::*field :
         {&plan::UnitRates::small_flops_per_second, &plan::UnitRates::flops_per_second,
          &plan::UnitRates::small_bytes_per_second, &plan::UnitRates::bytes_per_second}) {
      plan::Rates hostile = rates;
      hostile.of(plan::Unit::Pooling).*field = bad;
      EXPECT_FALSE(received(hostile).has_value()) << bad;
    }
}

TEST(Hostile, MoreThreadsThanAProcessorHasAreRefused) {
  Hello hello = hello_with({2e9, 3e9, 4e9, 1e-6});
  for (const auto& [threads, is_decent] : {std::pair{0u, true}, {1024u, true}, {1025u, false}}) {
    hello.device->threads = threads;
    const auto decoded = decode(encode(Message{hello}));
    EXPECT_EQ(decoded.has_value(), is_decent) << threads;
    if (!decoded) continue;
    EXPECT_EQ(std::get<Hello>(*decoded).device->threads, threads);
  }
}

TEST(Hostile, WhatIsSavedIsNoMoreThanThereIsOrRefused) {
  const auto code_of = [](const Message& message) {
    const auto decoded = decode(encode(message));
    return decoded ? std::nullopt : std::optional(decoded.error().code);
  };
  constexpr Bytes kMost{int64_t{1} << 60};
  for (const auto& [saved, code] : {std::pair{Bytes{0}, std::optional<ErrorCode>{}},
                                    {kMost, {}},
                                    {kMost + Bytes{1}, ErrorCode::OutOfRange},
                                    {Bytes{-1}, ErrorCode::OutOfRange}}) {
    EXPECT_EQ(code_of(Heartbeat{.saving = StageSaving{1, 1, 40, saved}}), code) << saved.value;
    EXPECT_EQ(code_of(JobStatus{.saving = {.step = 40, .bytes = saved}}), code) << saved.value;
  }
  EXPECT_EQ(code_of(JobStatus{.saving = {.step = 40, .bytes = {3}, .saved = {3}}}), std::nullopt);
  EXPECT_EQ(code_of(JobStatus{.saving = {.step = 40, .bytes = {3}, .saved = {4}}}), ErrorCode::OutOfRange);
}

TEST(Hostile, RecipesMakeWhatTheyCanOrAreRefused) {
  const auto code_of = [](std::vector<BlobRecipe> recipes) {
    const auto decoded = decode(encode(Message{HaveBlobs{.recipes = std::move(recipes)}}));
    return decoded ? std::nullopt : std::optional(decoded.error().code);
  };
  const BlobRecipe right{.sha256 = {{1}},
                         .recipe = {.source = {{2}},
                                    .source_size = 4096,
                                    .cut = dag::Recipe::Cut{.size = 64, .stride = 128, .count = 8},
                                    .rounding = dag::Rounding{.block = 16}}};
  EXPECT_EQ(code_of({right}), std::nullopt);
  EXPECT_EQ(code_of({right, right}), ErrorCode::OutOfRange) << "a blob is there twice";
  const std::function<void(dag::Recipe&)> wrongs[] = {
      [](dag::Recipe& recipe) { recipe.source_size = 0; },
      [](dag::Recipe& recipe) { recipe.source_size = UINT64_MAX; },
      [](dag::Recipe& recipe) { recipe.source_size = 512; },
      [](dag::Recipe& recipe) { recipe.cut->first = UINT64_MAX; },
      [](dag::Recipe& recipe) { recipe.cut->count = UINT64_MAX; },
      [](dag::Recipe& recipe) { recipe.cut->stride = 1; },
      [](dag::Recipe& recipe) { recipe.cut->size = 60; },
      [](dag::Recipe& recipe) { recipe.rounding->bits = 5; },
      [](dag::Recipe& recipe) { recipe.rounding->block = 0; },
      [](dag::Recipe& recipe) { recipe.rounding->block = 17; },
      [](dag::Recipe& recipe) { recipe.rounding->scale = dag::DType::F64; },
      [](dag::Recipe& recipe) { recipe.cut.reset(), recipe.rounding.reset(); },
  };
  for (size_t i = 0; i < std::size(wrongs); ++i) {
    BlobRecipe wrong = right;
    wrongs[i](wrong.recipe);
    EXPECT_EQ(code_of({wrong}), ErrorCode::OutOfRange) << i;
  }
  std::vector<BlobRecipe> many(kRecipesMax + 1, right);
  for (size_t i = 0; i < many.size(); ++i) std::memcpy(many[i].sha256.bytes.data(), &i, sizeof i);
  EXPECT_EQ(code_of(many), ErrorCode::OutOfRange);
  many.pop_back();
  EXPECT_EQ(code_of(many), std::nullopt);
}

// A stage that serves, with a draft.
AssignStage drafting(plan::DraftKind kind) {
  Rng rng(3, 0xD4AF7);
  AssignStage stage;
  do {
    stage = std::get<AssignStage>(test::random_message(Message(AssignStage{}).index(), rng));
  } while (!stage.serve || stage.seat.stage != 0 || stage.serve->graph->initializers().empty());
  std::erase_if(stage.tensors, [](const auto& tensor) { return tensor.key.name.starts_with("draft/"); });
  stage.sources.clear();
  stage.serve->draft = {.kind = kind, .right = 0.8};
  if (kind != plan::DraftKind::Decoder) return stage;
  stage.serve->draft->graph = stage.serve->graph;
  TensorReference& tensor = stage.tensors.emplace_back();
  const dag::Initializer& first = stage.serve->graph->initializers().front();
  tensor.key = dag::of_initializer(draft_name(first.name));
  tensor.spec = stage.serve->graph->spec(first.value);
  return stage;
}

TEST(HostileStages, ADraftIsWithinBoundsOrRefused) {
  using Kind = plan::DraftKind;
  const auto code_of = [](const AssignStage& stage) {
    const auto decoded = decode(encode(stage));
    return decoded ? std::nullopt : std::optional(decoded.error().code);
  };
  for (const Kind kind : {Kind::Ngram, Kind::Coin, Kind::Decoder}) {
    const AssignStage stage = drafting(kind);
    const auto decoded = decode(encode(stage));
    ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
    EXPECT_EQ(std::get<AssignStage>(*decoded).serve->draft->kind, kind);
    EXPECT_EQ(std::get<AssignStage>(*decoded).serve->draft->right, 0.8);
  }
  const auto refused = [&](Kind kind, const std::function<void(AssignStage&)>& spoil) {
    AssignStage stage = drafting(kind);
    spoil(stage);
    return code_of(stage);
  };
  const auto code = ErrorCode::OutOfRange;
  for (const double wrong : {-0.1, 1.01, std::nan(""), HUGE_VAL})
    EXPECT_TRUE(refused(Kind::Coin, [&](auto& stage) { stage.serve->draft->right = wrong; })) << wrong;
  EXPECT_TRUE(refused(Kind::Ngram, [](auto& stage) { stage.serve->draft->kind = Kind::None; }));
  EXPECT_TRUE(refused(Kind::Ngram, [](auto& stage) { stage.serve->draft->kind = Kind{4}; }));
  EXPECT_TRUE(refused(Kind::Ngram, [](auto& stage) { stage.serve->draft->graph = stage.serve->graph; }));
  EXPECT_TRUE(refused(Kind::Decoder, [](auto& stage) { stage.serve->draft->graph.reset(); }));
  EXPECT_EQ(refused(Kind::Decoder, [](auto& stage) { stage.tensors.back().key.name = "draft/none"; }), code);
  EXPECT_EQ(refused(Kind::Decoder, [](auto& stage) { stage.tensors.back().spec.shape.push_back(7); }), code);
  EXPECT_EQ(refused(Kind::Ngram,
                    [](auto& stage) {
                      stage.stage_count = 2;
                      stage.seat = {1};
                      stage.links.clear();
                    }),
            code)
      << "it is the first stage's";
}

TEST(HostileProgress, MoreGuessesThatAreRightThanThereAreAreRefused) {
  ServeProgress progress{.run = 1, .guesses = 3, .guesses_right = 3};
  const auto decoded = decode(encode(progress));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(std::get<ServeProgress>(*decoded).guesses, 3u);
  EXPECT_EQ(std::get<ServeProgress>(*decoded).guesses_right, 3u);
  ++progress.guesses_right;
  EXPECT_EQ(decode(encode(progress)).error().code, ErrorCode::OutOfRange);
}

TEST(HostileMessages, MutatedOnesAreRefusedOrDecent) {
  constexpr uint64_t kPerKind = kSanitized ? 500 : 2500;
  size_t taken = 0, tried = 0;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const uint64_t seed = 1000 + kind;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0xBAD);
    ByteVector original;
    const bool large = kind == Message(AssignStage{}).index();
    for (uint64_t i = 0; i < (large ? kPerKind / 2 : kPerKind); ++i) {
      if (i % 250 == 0) original = encode(test::random_message(kind, rng));
      ByteVector bytes = original;
      mutate(bytes, rng);
      taken += expect_decent(bytes);
      ++tried;
    }
  }
  EXPECT_GT(taken, tried / 10) << "of " << tried;
  EXPECT_LT(taken, tried / 2) << "of " << tried;
}

TEST(HostileMessages, EveryTruncationIsRefusedOrDecent) {
  Rng rng(5, 0xBAD);
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const ByteVector bytes = encode(test::random_message(kind, rng));
    const size_t step = std::max<size_t>(1, bytes.size() / 400);
    for (size_t size = 0; size < bytes.size(); size += step)
      expect_decent(ByteVector(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)));
  }
}

// ---- bombs

void put_varint(ByteVector& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<std::byte>(value | 0x80));
  to.push_back(static_cast<std::byte>(value));
}
ByteVector delimited(uint32_t number, const ByteVector& content) {
  ByteVector bytes;
  put_varint(bytes, number << 3 | 2);
  put_varint(bytes, content.size());
  bytes.insert(bytes.end(), content.begin(), content.end());
  return bytes;
}
ByteVector repeated(const ByteVector& part, size_t size) {
  ByteVector bytes;
  bytes.reserve(size + part.size());
  while (bytes.size() + part.size() <= size) bytes.insert(bytes.end(), part.begin(), part.end());
  return bytes;
}

size_t heap_in_use() { return mallinfo2().uordblks + mallinfo2().hblkhd; }
size_t peak_resident() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

// Decoding it fails, for this reason, and takes little memory on the way.
void expect_defused(const char* what, const ByteVector& bytes, ErrorCode code,
                    size_t growth_max = size_t{16} << 20) {
  SCOPED_TRACE(what);
  const size_t heap = heap_in_use(), peak = peak_resident();
  const auto decoded = decode(bytes);
  EXPECT_LE(heap_in_use(), heap + (1 << 16)) << "something stays behind";
  if (!kSanitized) {
    EXPECT_LE(peak_resident(), peak + growth_max);
  }
  ASSERT_FALSE(decoded.has_value());
  EXPECT_EQ(decoded.error().code, code) << decoded.error().message;
}

TEST(Bombs, TakeLittleMemory) {
  constexpr size_t kSize = kMessageSizeMax - 64;
  // Numbers of Envelope's fields: assign_stage 4, step_report 14, have_blobs 22, submit_job 26, job_list 31.
  const ByteVector empty_op = delimited(3, {}),
                   empty_graph_op = delimited(4, delimited(6, delimited(2, repeated(empty_op, kSize))));
  expect_defused("ops of two bytes", empty_graph_op, ErrorCode::ResourceExhausted);
  expect_defused("jobs of two bytes", delimited(31, repeated(delimited(1, {}), kSize)),
                 ErrorCode::ResourceExhausted);
  expect_defused("texts of no bytes", delimited(22, repeated(delimited(2, {}), kSize)),
                 ErrorCode::ResourceExhausted);
  expect_defused("packed numbers", delimited(4, delimited(6, delimited(3, ByteVector(kSize)))),
                 ErrorCode::ResourceExhausted);
  expect_defused("unknown fields",
                 delimited(26, repeated({std::byte{0xF8}, std::byte{0x01}, std::byte{0}}, kSize)),
                 ErrorCode::ResourceExhausted);
  expect_defused("unknown messages", repeated(delimited(1000, {}), kSize), ErrorCode::ResourceExhausted);
  expect_defused("one message again and again", repeated(delimited(26, {}), kSize),
                 ErrorCode::ResourceExhausted);
  ByteVector nested;
  for (int depth = 0; depth < 100'000 && nested.size() < 100'000; ++depth) nested = delimited(4, nested);
  expect_defused("nesting", nested, ErrorCode::Corrupted);  // no message holds itself
  ByteVector groups(1 << 20, std::byte{0x0B});              // the start of a group, a million deep
  expect_defused("groups", groups, ErrorCode::Corrupted);
  ByteVector lie;
  put_varint(lie, 26 << 3 | 2);
  put_varint(lie, uint64_t{1} << 62);
  expect_defused("a length beyond the end", lie, ErrorCode::Corrupted);
  expect_defused("too long", ByteVector(kMessageSizeMax + 1), ErrorCode::OutOfRange);
  expect_defused("nothing", {}, ErrorCode::Corrupted);
  expect_defused("a message of a later version", delimited(1000, {}), ErrorCode::VersionMismatch);
}

TEST(Bombs, TheLargestThatPassesTheScanStaysBounded) {
  // Just below the scan's bound: what protobuf and the message then take.
  const ByteVector bytes = delimited(31, repeated(delimited(1, {}), 2 * 240'000));
  const size_t peak = peak_resident();
  EXPECT_FALSE(decode(bytes).has_value());  // a job without state
  if (!kSanitized) {
    EXPECT_LE(peak_resident(), peak + (size_t{200} << 20));
  }
}

TEST(HostilePlans, WeightsOfLossesThatAreNoNumbersOrTooManyAreRefused) {
  const auto decoded = [](std::vector<double> weights, uint32_t accuracy_term) {
    RunPlan plan;
    plan.terms.data_key = {};
    plan.terms.loss_terms = {std::move(weights), accuracy_term};
    return decode(encode(plan));
  };
  const auto good = decoded({1, -0.5}, 1);
  ASSERT_TRUE(good.has_value()) << good.error().message;
  EXPECT_EQ(std::get<RunPlan>(*good).terms.loss_terms, (dag::LossTerms{{1, -0.5}, 1}));
  // A record of a broker that knew one loss.
  EXPECT_EQ(std::get<RunPlan>(*decoded({}, 0)).terms.loss_terms, dag::LossTerms{});
  EXPECT_TRUE(decoded(std::vector<double>(64, 1.0), 63).has_value());
  for (const double wrong : {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e7})
    EXPECT_EQ(decoded({1, wrong}, 0).error().code, ErrorCode::OutOfRange) << wrong;
  EXPECT_EQ(decoded(std::vector<double>(65, 1.0), 0).error().code, ErrorCode::OutOfRange);
  EXPECT_EQ(decoded({1, 1}, 2).error().code, ErrorCode::OutOfRange);
}

// ---- graphs

TEST(HostileGraphs, MutatedOnesAreRefusedOrDecent) {
  for (uint64_t seed = 1; seed <= (kSanitized ? 4u : 12u); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0x6BAD);
    const auto model = seed % 2 == 0 ? test::residual_net(seed) : test::transformer(seed, {.layers = 1});
    const test::CutModel cut = test::cut_model(
        model, {.fuse_elementwise = true, .convolution_layout = dag::Layout::Blocked8}, 3, rng);
    const ByteVector original = encode_graph(cut.split.stages[rng.below(cut.split.stages.size())].graph);
    size_t taken = 0;
    for (int i = 0; i < 1000; ++i) {
      ByteVector bytes = original;
      mutate(bytes, rng);
      const auto decoded = decode_graph(bytes);
      if (!decoded) continue;
      ++taken;
      const auto again = decode_graph(encode_graph(*decoded));
      ASSERT_TRUE(again.has_value()) << again.error().message;
    }
    EXPECT_GT(taken, 0u);
    EXPECT_LT(taken, 900u);
  }
}

// ---- tensors

TEST(HostileTensors, HeadersThatLieAreRefused) {
  TensorHeader header{1, 2, 3, 4, 5, ProgramKind::Train, Direction::Backward, 0, {dag::DType::F32, {2, 3}}};
  ByteVector frame = encode_header(header);
  frame.resize(frame.size() + 24);
  ASSERT_TRUE(decode_tensor(frame).has_value());
  const auto refused = [&](size_t at, int value, const char* what) {
    ByteVector lie = frame;
    lie[at] = static_cast<std::byte>(value);
    EXPECT_FALSE(decode_tensor(lie).has_value()) << what;
  };
  refused(0, 'X', "another magic");
  refused(4, 2, "the other format");
  refused(4, 3, "a format of later");
  refused(5, 13, "dtype");
  refused(5, 1, "a wider dtype");
  refused(6, 6, "program");
  refused(7, 2, "direction");
  refused(34, 1, "fewer dims");
  refused(34, 3, "more dims");
  refused(34, 255, "many more dims");
  refused(35, 1, "a byte that must be 0");
  refused(40, 25, "another size");
  refused(48, 3, "a larger dim");
  refused(55, 0x80, "a negative dim");
  refused(54, 0x80, "a huge dim");
  for (size_t size = 0; size < frame.size(); ++size)
    EXPECT_FALSE(decode_tensor(std::span(frame).first(size)).has_value()) << size;
  frame.push_back({});
  EXPECT_FALSE(decode_tensor(frame).has_value());
}

TEST(HostileTensors, CodecsThatAreNoneAreRefused) {
  TensorHeader header{1, 2, 3, 4, 5, ProgramKind::Train, Direction::Backward, 0, {dag::DType::F32, {2, 300}}};
  header.codec = *compress::parse("int4");
  ByteVector frame = encode_header(header);
  frame.resize(frame.size() + compress::wire_bytes(header.codec, 600));
  ASSERT_TRUE(decode_tensor(frame).has_value());
  const auto refused = [&](size_t at, int value, const char* what) {
    ByteVector lie = frame;
    lie[at] = static_cast<std::byte>(value);
    EXPECT_FALSE(decode_tensor(lie).has_value()) << what;
  };
  refused(4, 1, "said to be dense");
  refused(5, 1, "of doubles");
  refused(48, 0, "dense in this format");
  refused(48, 1, "another kind, of another length");
  refused(48, 200, "an unknown kind");
  refused(49, 5, "bits that nothing has");
  refused(49, 8, "more bits than the frame holds");
  refused(50, 2, "neither true nor false");
  refused(51, 9, "unknown values");
  refused(53, 1, "a byte that must be 0");
  refused(56, 1, "a density of blocks");
  refused(60, 1, "a byte that must be 0");
  refused(72, 0x7F, "more elements than the frame holds");
  for (size_t size = 0; size < frame.size(); ++size)
    EXPECT_FALSE(decode_tensor(std::span(frame).first(size)).has_value()) << size;
}

TEST(HostileTensors, MutatedHeadersNeverReachBeyondTheFrame) {
  Rng rng(17, 0xBAD);
  TensorHeader header{1, 2, 3, 4, 5, ProgramKind::Train, Direction::Backward, 0, {dag::DType::F32, {2, 3}}};
  ByteVector original = encode_header(header);
  original.resize(original.size() + 24);
  for (int i = 0; i < 100'000; ++i) {
    ByteVector bytes = original;
    mutate(bytes, rng);
    const auto decoded = decode_tensor(bytes);
    if (!decoded) continue;
    EXPECT_EQ(decoded->bytes.data() + decoded->bytes.size(), bytes.data() + bytes.size());
    EXPECT_LE(static_cast<int64_t>(decoded->bytes.size()),
              payload_bytes(decoded->header.spec, decoded->header.codec).value);
  }
}

// ---- pieces

ByteVector piece_of(const TensorHeader& header, uint64_t number, uint32_t offset, uint32_t size,
                    size_t held) {
  ByteVector frame = encode_piece_head(number, offset, size, encode_header(header));
  frame.resize(frame.size() + held);
  return frame;
}
Result<PieceStart> decode_piece(const ByteVector& frame) {
  return decode_piece_head(std::span(frame).first(std::min(frame.size(), kPieceHeadSizeMax)), frame.size());
}

TEST(HostilePieces, HeadsThatLieAreRefused) {
  constexpr uint32_t kSize = 2 * kPieceSize + 24;
  const TensorHeader header{.edge = 5, .spec = {dag::DType::F32, {kSize / 4}}};
  const ByteVector frame = piece_of(header, 9, 2 * kPieceSize, kSize, 24);
  const auto decoded = decode_piece(frame);
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message;
  EXPECT_EQ(decoded->head.number, 9u);
  EXPECT_EQ(decoded->head.offset, 2 * kPieceSize);
  EXPECT_EQ(decoded->head.size, kSize);
  EXPECT_EQ(decoded->head.header, header);
  EXPECT_EQ(decoded->head_size + decoded->head.piece_size(), frame.size());
  const auto refused = [&](size_t at, int value, const char* what) {
    ByteVector lie = frame;
    lie[at] = static_cast<std::byte>(value);
    EXPECT_FALSE(decode_piece(lie).has_value()) << what;
  };
  refused(8, 1, "not on the grid");
  refused(10, 0, "another piece, of another length");
  refused(10, 3, "beyond the tensor");
  refused(11, 0xFF, "far beyond the tensor");
  refused(12, 25, "larger than the tensor");
  refused(15, 0xFF, "much larger than the tensor");
  refused(16, 'X', "another magic");
  refused(64, 1, "another shape");
  for (size_t size = 0; size < frame.size(); ++size)
    EXPECT_FALSE(decode_piece(ByteVector(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size)))
                     .has_value())
        << size;
  EXPECT_FALSE(decode_piece(piece_of(header, 9, 2 * kPieceSize, kSize, 25)).has_value());
  EXPECT_FALSE(decode_piece(piece_of(header, 9, 0, kSize, 24)).has_value());
  const TensorHeader empty{.spec = {dag::DType::F32, {0}}};
  EXPECT_TRUE(decode_piece(piece_of(empty, 0, 0, 0, 0)).has_value());
  EXPECT_FALSE(decode_piece(piece_of(empty, 0, 0, 0, 1)).has_value());
}

TEST(HostilePieces, MutatedHeadsNeverReachBeyondTheirFrameOrTensor) {
  Rng rng(23, 0xBAD);
  constexpr uint32_t kSize = kPieceSize + 24;
  const TensorHeader header{
      1, 2, 3, 4, 5, ProgramKind::Train, Direction::Backward, 0, {dag::DType::F32, {2, kSize / 8}}};
  const ByteVector original = piece_of(header, 7, kPieceSize, kSize, 24);
  size_t taken = 0;
  for (int i = 0; i < 100'000; ++i) {
    ByteVector bytes = original;
    mutate(bytes, rng);
    const auto decoded = decode_piece(bytes);
    if (!decoded) continue;
    ++taken;
    const PieceHead& head = decoded->head;
    EXPECT_EQ(decoded->head_size + head.piece_size(), bytes.size());
    EXPECT_LE(head.offset + head.piece_size(), head.size);
    EXPECT_LE(head.piece_size(), kPieceSize);
    EXPECT_LE(static_cast<int64_t>(head.size), payload_bytes(head.header.spec, head.header.codec).value);
  }
  EXPECT_GT(taken, 1000u);
}

TEST(HostileChunks, ShortAndLongOnesAreRefused) {
  EXPECT_FALSE(decode_chunk(ByteVector(7)).has_value());
  EXPECT_TRUE(decode_chunk(ByteVector(8)).has_value());
  EXPECT_TRUE(decode_chunk(ByteVector(8 + kChunkSizeMax)).has_value());
  EXPECT_FALSE(decode_chunk(ByteVector(9 + kChunkSizeMax)).has_value());
}

}  // namespace
}  // namespace weft::proto
