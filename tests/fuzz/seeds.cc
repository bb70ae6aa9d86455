#include "tests/fuzz/seeds.h"

#include <zlib.h>

#include <cstring>
#include <map>

#include "base/check.h"
#include "compress/codec.h"
#include "data/npy.h"
#include "data/npz_writer.h"
#include "net/relay.h"
#include "proto/codec/codec.h"
#include "security/token.h"
#include "storage/manifest.h"
#include "storage/packed.h"
#include "tests/data/npz_samples.h"
#include "tests/fuzz/data_seeds.h"
#include "tests/fuzz/seed_list.h"
#include "tests/fuzz/store_rows.h"
#include "tests/fuzz/web_seeds.h"
#include "tests/proto/samples.h"
#include "tests/store/history.h"
#include "tests/text/samples.h"

namespace weft::fuzz {
namespace {

// ---- what goes over connections

constexpr size_t kMessageKinds = std::variant_size_v<proto::AnyMessage>;

void messages(Seeds& seeds) {
  for (size_t kind = 0; kind < kMessageKinds; ++kind)
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      Rng rng(seed, kind);
      const proto::Message message = test::random_message(kind, rng);
      seeds.add(std::string(proto::name_of(message)) + "_" + std::to_string(seed), proto::encode(message));
    }
}

void graphs(Seeds& seeds) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    Rng rng(seed, 0);
    const auto model =
        seed % 2 == 0 ? test::residual_net(seed, {.blocks = 1}) : test::transformer(seed, {.layers = 1});
    const auto cut = test::cut_model(
        model, {.fuse_elementwise = true, .convolution_layout = dag::Layout::Blocked8}, 3, rng);
    for (size_t stage = 0; stage < cut.split.stages.size(); ++stage)
      seeds.add("model_" + std::to_string(seed) + "_stage_" + std::to_string(stage),
                proto::encode_graph(cut.split.stages[stage].graph));
  }
}

proto::TensorHeader header(const dag::Shape& shape, const char* codec) {
  proto::TensorHeader made;
  made.run = 7;
  made.plan_version = 2;
  made.step = 40;
  made.microbatch = 3;
  made.edge = 5;
  made.spec = {dag::DType::F32, shape};
  made.codec = compress::parse(codec).value();
  return made;
}

constexpr const char* kCodecs[] = {"dense",
                                   "fp16",
                                   "bf16",
                                   "int8",
                                   "int3",
                                   "int4z",
                                   "topk:0.1:fp32",
                                   "topk:0.25:int4",
                                   "topk:0.1:fp16+int4",
                                   "topk:0.2:int8+int3",
                                   "randomk:0.3:fp16",
                                   "randomk:1:int4"};

Bytes payload_of(const compress::Codec& codec, size_t count) {
  std::vector<float> x(count);
  Rng rng(9, count);
  for (float& value : x) value = rng.below(3) == 0 ? 0.0f : static_cast<float>(rng.normal());
  Bytes payload(compress::wire_bytes(codec, count));
  compress::Scratch scratch;
  const compress::Draw draw{.seed = 3, .step = 5, .microbatch = 1, .edge = 2};
  payload.resize(compress::encode(codec, x, draw, payload, scratch).value());
  return payload;
}

void codecs(Seeds& seeds) {
  for (const char* name : kCodecs) {
    seeds.add(std::string("name_") + name, joined({number(0xFF, 1), bytes_of(name)}));
    const auto codec = compress::parse(name).value();
    const Bytes fields = joined({number(static_cast<uint8_t>(codec.kind), 1), number(codec.bits, 1),
                                 number(codec.masks_zeros, 1), number(static_cast<uint8_t>(codec.values), 1),
                                 number(codec.floor_bits, 1), number(codec.per_million, 4)});
    for (const size_t count : {5, 300})
      seeds.add(std::string(name) + "_" + std::to_string(count),
                joined({fields, number(count, 2), payload_of(codec, count)}));
  }
}

void tensors(Seeds& seeds) {
  for (const char* name : kCodecs) {
    const auto head = header({3, 50}, name);
    const Bytes encoded = proto::encode_header(head), payload = payload_of(head.codec, 150);
    seeds.add(std::string("whole_") + name, joined({number(0, 1), encoded, payload}));
    Bytes first = joined({encoded, payload});
    const size_t size = first.size();
    first.resize(std::min(size, proto::kTensorHeaderSizeMax));
    seeds.add(std::string("head_") + name, joined({number(1, 1), number(size, 4), first}));
  }
  // Of a tensor in two pieces.
  const auto large = header({5, 4096}, "dense");
  const auto size = static_cast<uint32_t>(large.spec.bytes().value);
  for (const uint32_t offset : {0u, static_cast<uint32_t>(proto::kPieceSize)}) {
    const Bytes head = proto::encode_piece_head(8, offset, size, proto::encode_header(large));
    Bytes first = head;
    first.resize(proto::kPieceHeadSizeMax);
    seeds.add("piece_" + std::to_string(offset),
              joined({number(2, 1),
                      number(head.size() + std::min<size_t>(proto::kPieceSize, size - offset), 4), first}));
  }
  seeds.add("chunk", joined({number(3, 1), proto::encode_chunk_head(77), bytes_of("some bytes of a blob")}));
}

void frames(Seeds& seeds) {
  const auto frame = [](proto::FrameKind kind, const Bytes& payload) {
    return joined({number(payload.size(), 4), number(static_cast<uint8_t>(kind), 1), payload});
  };
  const auto small = header({10}, "dense");
  const Bytes tensor = proto::encode_header(small), payload = payload_of(small.codec, 10);
  const Bytes message = frame(proto::FrameKind::Message, proto::encode(proto::Drain{})),
              whole = frame(proto::FrameKind::Tensor, joined({tensor, payload})),
              piece = frame(proto::FrameKind::Piece,
                            joined({proto::encode_piece_head(4, 0, 40, tensor), payload})),
              probe = frame(proto::FrameKind::Probe, Bytes(700)),
              empty = frame(proto::FrameKind::Message, {});
  const Bytes all = joined({message, whole, piece, probe, empty, piece, message});
  for (uint8_t choices = 0; choices < 8; ++choices)
    seeds.add("whole_records_" + std::to_string(choices), joined({number(choices, 1), all}));
  for (uint8_t choices = 8; choices < 16; ++choices) {  // each record behind its length
    Bytes input = number(choices, 1);
    for (size_t at = 0, size = choices; at < all.size(); at += size, size = size * 5 % 97 + 1) {
      size = std::min(size, all.size() - at);
      input.push_back(static_cast<std::byte>(size - 1));
      input.insert(input.end(), all.begin() + static_cast<std::ptrdiff_t>(at),
                   all.begin() + static_cast<std::ptrdiff_t>(at + size));
    }
    seeds.add("parts_" + std::to_string(choices), std::move(input));
  }
  seeds.add("a_frame_that_never_comes", joined({number(1, 1), number(1 << 20, 4), number(1, 1)}));
  seeds.add("too_long_a_frame", joined({number(1, 1), number(UINT32_MAX, 4), number(1, 1)}));
}

void addresses(Seeds& seeds) {
  for (const char* text :
       {"peer.example.org:7700", "192.0.2.1:7000", "[2001:db8::1]:7000", "localhost:0", ":1", "a:65536"})
    seeds.add(text, text);
  net::RelayPreamble preamble{.initiates = true};
  preamble.ticket.bytes.fill(7);
  const auto bytes = net::relay_preamble(preamble);
  seeds.add("relay", Bytes(bytes.begin(), bytes.end()));
}

void tokens(Seeds& seeds) {
  for (const auto role : {security::Role::Peer, security::Role::Submitter}) {
    security::Token token{.role = role, .id = 0x0123456789abcdef};
    token.broker.digest.bytes.fill(0x5a);
    token.secret.bytes.fill(0xc3);
    const std::string text = security::to_text(token);
    seeds.add(std::string(security::to_string(role)), text);
    seeds.add(std::string(security::to_string(role)) + "_with_spaces", " \t" + text + "\r\n");
  }
}

// ---- what lies on disks

void manifests(Seeds& seeds) {
  storage::Manifest manifest{.sequence = 7,
                             .run = "run-1",
                             .step = 120,
                             .data_position = 7680,
                             .graph_hash = std::string(64, 'a'),
                             .numerics = "cpu avx512 \"quoted\" \xc3\xa9",
                             .tensors = {}};
  seeds.add("empty", storage::manifest_json(manifest));
  manifest.tensors = {
      {dag::of_initializer("conv.weight", dag::StateSlot::Momentum),
       {dag::DType::F32, {8, 3, 3, 3}},
       std::string(64, 'b')},
      {dag::of_initializer("conv.weight"), {dag::DType::F32, {8, 3, 3, 3}}, std::string(64, 'c')},
      {dag::of_initializer("scale"), {dag::DType::F64, {}}, std::string(64, 'd')}};
  seeds.add("three_tensors", storage::manifest_json(manifest));
  manifest.settings = storage::RunSettings{.values = {{"seed", "3"}, {"steps", "40"}}, .learning_rate = 0.1};
  seeds.add("settings", storage::manifest_json(manifest));
}

void packed(Seeds& seeds) {
  storage::Packer packer;
  Rng rng(4, 0);
  for (const size_t size : {1, 403, 20'000})
    for (const bool has_base : {false, true}) {
      Bytes base(has_base ? size : 0), blob(size);
      for (size_t i = 0; i < base.size(); ++i)
        base[i] = static_cast<std::byte>(i * 7 >> 3);  // as the target has it
      for (size_t i = 0; i < size; ++i)
        blob[i] = (has_base ? base[i] : static_cast<std::byte>(i / 64)) ^
                  static_cast<std::byte>(i % 4 == 0 ? rng.below(4) : 0);
      seeds.add(std::to_string(size) + (has_base ? "_with_base" : ""),
                joined({number(size, 3), number(11, 1), number(has_base, 1), packer.pack(blob, base)}));
    }
}

void npy(Seeds& seeds) {
  for (const char* text : {"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2, 2), }",
                           "{'descr': '|b1', 'fortran_order': False, 'shape': (), }",
                           "{'shape': (7,), 'fortran_order': False, 'descr': '<i8'}",
                           "{'descr': '<f2', 'fortran_order': True, 'shape': (2, 2)}",
                           "{'descr': [('a', '<i4'), ('b', '<f8')], 'fortran_order': False, 'shape': (2,)}"})
    seeds.add("header_" + std::to_string(std::strlen(text)), text);
}

template <size_t N>
Bytes of_array(const unsigned char (&array)[N]) {
  const auto bytes = std::as_bytes(std::span(array));
  return {bytes.begin(), bytes.end()};
}

void npz(Seeds& seeds) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> labels = {4, 5, 6};
  seeds.add("ours", data::npz_bytes(std::vector<data::NpzArray>{{"x", dag::make_tensor({3, 2}, values)},
                                                                {"label", dag::make_tensor({3}, labels)}})
                        .value());
  seeds.add("numpy", of_array(data::kSavez));
  seeds.add("numpy_compressed", of_array(data::kSavezCompressed));
}

Bytes gzipped(const Bytes& plain) {
  z_stream z{};
  WEFT_CHECK(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(deflateBound(&z, plain.size()) + 64);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(plain.data()));
  z.avail_in = static_cast<uInt>(plain.size());
  z.next_out = reinterpret_cast<Bytef*>(packed.data());
  z.avail_out = static_cast<uInt>(packed.size());
  WEFT_CHECK(deflate(&z, Z_FINISH) == Z_STREAM_END);
  packed.resize(z.total_out);
  deflateEnd(&z);
  return packed;
}

void idx(Seeds& seeds) {
  const auto file = [](std::initializer_list<uint8_t> dims, std::string_view elements) {
    Bytes bytes = {std::byte{0}, std::byte{0}, std::byte{8}, static_cast<std::byte>(dims.size())};
    for (const uint8_t dim : dims)
      bytes.insert(bytes.end(), {std::byte{0}, std::byte{0}, std::byte{0}, std::byte{dim}});
    return joined({bytes, bytes_of(elements)});
  };
  const Bytes images = file({3, 2, 2}, "abcdefghijkl"), labels = file({3}, "\x05\x02\x09");
  const auto add = [&](const char* name, const Bytes& l, const Bytes& i) {
    seeds.add(name, joined({number(l.size(), 2), l, i}));
  };
  add("plain", labels, images);
  add("gzipped", gzipped(labels), gzipped(images));
  add("rank_4", labels, file({3, 2, 1, 2}, "abcdefghijkl"));
}

const std::string kJob = R"(format: 1
model: model.onnx
task: train
inputs: {x: image}
loss:
  - {type: cross_entropy, logits: logits, labels: label}
  - {type: mse, prediction: y, target: z, weight: 0.5}
data:
  train: {type: npz, path: train.npz}
  test: {type: idx, images: i.gz, labels: l.gz, scale: 0.5, mean: 1, deviation: 2}
batch_size: 64
microbatch_size: auto
steps: 500
seed: 3
freeze: ["mask", "layer.?.*"]
optimizer: {type: adamw, learning_rate: 1e-3, weight_decay: 0.1, betas: [0.9, 0.99]}
schedule: {type: cosine, warmup_steps: 100, final: 0.1}
clip_norm: 1.0
evaluate_every: 250
checkpoint: {every: 60s}
stages: 4
compression: {policy: auto}
exclude: [anna]
output: trained.onnx
)";

void job_file(Seeds& seeds) {
  seeds.add("whole", joined({number(0, 1), bytes_of(kJob)}));
  for (const std::string set : {"optimizer.type=sgd", "steps=null", "checkpoint={steps: 10}", "a.b.c=[1, 2]"})
    seeds.add("set_" + set.substr(0, 5), joined({number(set.size(), 1), bytes_of(set), bytes_of(kJob)}));
  seeds.add("text", joined({number(0, 1), bytes_of(R"(model: m.onnx
task: train
inputs: {tokens: tokens}
loss: {type: cross_entropy, logits: logits, labels: targets}
data:
  train: {type: text, path: corpus.txt, sequence_length: 128, validation: 0.1}
batch_size: 16
epochs: 3
optimizer: &o {type: sgd, learning_rate: 0.1, momentum: 0.9, nesterov: true}
)")}));
  seeds.add("predict",
            joined({number(0, 1), bytes_of(R"({model: m.onnx, task: predict, inputs: {x: x}, batch_size: 8,
  data: {predict: {type: npz, path: "p.npz"}}, output: out.npz})")}));
  seeds.add("init",
            joined({number(0, 1), bytes_of(R"({model: m.onnx, task: predict, inputs: {x: x}, batch_size: 8,
  data: {predict: {type: npz, path: "p.npz"}}, output: out.npz, init: {path: w.safetensors,
  rename: {"^a\\.(\\w+)[^b]{2,30}": "$1"}, transpose: ["*.w"], ignore: [a], keep: [b], partial: true}})")}));
  seeds.add(
      "bomb",
      joined(
          {number(0, 1),
           bytes_of("a: &a [1, 1, 1, 1, 1, 1, 1, 1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, "
                    "*b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c]\ne: [*d, *d, *d, *d, *d]\n")}));
  seeds.add("nested", joined({number(0, 1), bytes_of(std::string(200, '['))}));
}

void cluster_file(Seeds& seeds) {
  seeds.add("regions", R"(devices:
  - {type: rtx3080, count: 8, region: oregon}
  - {name: lab, peak_flops: {fp32: 2.0e13, bf16: 8.0e13}, memory: 24GiB, memory_bandwidth: 9.0e11, region: tokyo, uplink: 20Mbit, owner: anna}
regions:
  within:  {round_trip_ms: 1, bandwidth: 10Gbit}
  between: [{from: oregon, to: tokyo, round_trip_ms: 92, bandwidth: 262Mbit, jitter_ms: 3, loss: 0.001, one_way: true}]
broker: oregon
)");
  seeds.add("links", R"(devices: [{name: a, type: h100}, {name: b, type: rtx3080}]
links:
  - {from: a, to: b, round_trip_ms: 92, bandwidth: 262Mbit}
  - {from: b, to: a, round_trip_ms: 92, bandwidth: 1Gbit}
)");
  seeds.add("catalogue", R"(devices:
  - {name: card, peak_flops: {fp32: 2.0e13}, memory: 24GiB, memory_bandwidth: 9.0e11, source: somewhere,
     price: {usd: 700, as_of: 2020-09, source: here}}
)");
}

void store_rows(Seeds& seeds) {
  std::map<std::string_view, Bytes> messages;
  Rng rng(11, 0);
  for (size_t kind = 0; kind < kMessageKinds; ++kind) {
    const proto::Message message = test::random_message(kind, rng);
    messages.emplace(proto::name_of(message), proto::encode(message));
  }
  for (size_t i = 0; i < kStoredColumns.size(); ++i) {
    const auto& [table, column, message] = kStoredColumns[i];
    const std::string name = std::string(table) + "_" + std::string(column);
    for (const uint64_t value : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 63})
      seeds.add(name + "_" + std::to_string(value), joined({number(i, 1), number(0, 1), number(value, 8)}));
    seeds.add(name + "_empty", joined({number(i, 1), number(1, 1)}));
    seeds.add(name + "_32_bytes", joined({number(i, 1), number(1, 1), Bytes(32, std::byte{'x'})}));
    if (!message.empty()) seeds.add(name, joined({number(i, 1), number(1, 1), messages.at(message)}));
  }
}

// ---- texts

void tokenizers(Seeds& seeds) {
  const std::string_view text = " hello\n\u00E9 w\xFF<|im_end|>";
  const auto add = [&](std::string name, const std::string& file) {
    seeds.add(std::move(name), joined({number(text.size(), 1), bytes_of(text), bytes_of(file)}));
  };
  add("byte_level", weft::text::testing::byte_level_file().dump());
  add("sentencepiece", weft::text::testing::sentencepiece_file().dump(1));
  add("chat", R"({"chat_template": "{% for m in messages %}{{ '<|im_start|>' + m['role'] }}{% endfor %}"})");
  // Files with little of a vocabulary, so that a change of them often meets what is around it.
  const std::string model =
      R"("model": {"type": "BPE", "unk_token": "a", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";
  for (
      const char* const rules :
      {R"("normalizer": {"type": "NFKC"}, "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "first"}, )"
       R"("decoder": {"type": "Metaspace", "prepend_scheme": "first"}, )",
       R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?i:a|[^b\\s]+)+?"}, "behavior": "Contiguous"}, )"
       R"("decoder": {"type": "Fuse"}, )",
       R"("normalizer": {"type": "Replace", "pattern": {"Regex": "a{1,2}"}, "content": "b"}, )"
       R"("decoder": {"type": "Fuse"}, "added_tokens": [{"id": 3, "content": "b", "lstrip": true, "normalized": true}], )"})
    add("rules_" + std::to_string(std::string_view(rules).size()), "{" + std::string(rules) + model);
}

const std::map<std::string_view, void (*)(Seeds&)>& makers() {
  static const std::map<std::string_view, void (*)(Seeds&)> kMakers = {{"addresses", addresses},
                                                                       {"cluster_file", cluster_file},
                                                                       {"codecs", codecs},
                                                                       {"frames", frames},
                                                                       {"graphs", graphs},
                                                                       {"idx", idx},
                                                                       {"job_file", job_file},
                                                                       {"manifests", manifests},
                                                                       {"messages", messages},
                                                                       {"nodes", node_seeds},
                                                                       {"npy", npy},
                                                                       {"npz", npz},
                                                                       {"onnx", onnx_seeds},
                                                                       {"onnx_files", onnx_file_seeds},
                                                                       {"packed", packed},
                                                                       {"store_rows", store_rows},
                                                                       {"tensors", tensors},
                                                                       {"tokenizers", tokenizers},
                                                                       {"tokens", tokens},
                                                                       {"zip", npz}};
  return kMakers;
}

}  // namespace

std::vector<Seed> seeds_of(std::string_view target) {
  if (auto of_the_web = web_seeds(target); !of_the_web.empty()) return of_the_web;
  if (auto of_data = data_seeds(target); !of_data.empty()) return of_data;
  Seeds seeds;
  makers().at(target)(seeds);
  return seeds.take();
}

}  // namespace weft::fuzz
