#include "configs/job_keys.h"

namespace weft::configs {
namespace {

constexpr JobKey kData[] = {
    {.path = "data",
     .meaning = "What is read. `task: train` needs `train`, `task: predict` needs `predict`.",
     .example = "data: {train: {type: npz, path: train.npz}}"},
    {.path = "data.train",
     .meaning = "What the model is trained on.",
     .example = "data: {train: {type: npz, path: train.npz}}"},
    {.path = "data.test",
     .meaning = "What the model is evaluated on. A text may keep a part of itself for that (`validation`).",
     .example = "data: {train: {type: npz, path: train.npz}, test: {type: npz, path: test.npz}}",
     .otherwise_words = "nothing is evaluated"},
    {.path = "data.predict",
     .meaning = "What is predicted on, with `task: predict`.",
     .example = "data: {predict: {type: npz, path: images.npz}}",
     .task = Task::Predict},
    {.path = "data.SET.type",
     .meaning =
         "`images`: photos in a folder for each class, or named by a table. `csv`: a table with a header. "
         "`npy`: an array a file, as `np.save` writes it. `npz`: arrays as `np.savez` writes them. Arrays "
         "have their samples on the first axis. `idx`: images and labels as MNIST has them, also gzipped. "
         "`text`: the bytes of a file as tokens. `tokens`: what a tokenizer made of a text before, as "
         "nanoGPT's and llm.c's .bin files or a .npy array have it. `jsonl`: a JSON object a line, each a "
         "text, a prompt with its completion, or a conversation. SET stands for `train`, `test` or "
         "`predict`. "
         "[DATA.md](DATA.md) says what is taken and what is refused.",
     .example = "data: {train: {type: idx, images: images.gz, labels: labels.gz}}"},
    {.path = "data.SET.path",
     .meaning =
         "`npz`, `csv`, `text`, `tokens` and `jsonl`: the file. `images`: the folder, or a table with the "
         "columns `path` and `label`.",
     .example = "data: {train: {type: npz, path: train.npz}}"},
    {.path = "data.SET.arrays",
     .meaning = "`npy`: the file of each column.",
     .example = "data: {train: {type: npy, arrays: {image: images.npy, label: labels.npy}}}"},
    {.path = "data.SET.images",
     .meaning = "`idx`: the file of the images.",
     .example = "data: {train: {type: idx, images: images.gz, labels: labels.gz}}"},
    {.path = "data.SET.labels",
     .meaning = "`idx`: the file of the labels.",
     .example = "data: {train: {type: idx, images: images.gz, labels: labels.gz}}"},
    {.path = "data.SET.size",
     .meaning = "`images`: how many pixels an edge of the picture has that the model gets.",
     .example = "data: {train: {type: images, path: photos, size: 224}}"},
    {.path = "data.SET.resize",
     .meaning = "`images`: what the shorter edge of a photo becomes before the middle is cut out.",
     .example = "data: {train: {type: images, path: photos, size: 224, resize: 256}}",
     .otherwise_words = "`size`; with `augment: crop` 8/7 of it"},
    {.path = "data.SET.augment",
     .meaning =
         "`images`: what chance does to a photo that is trained on, one word or a list of them. `flip` "
         "mirrors half of them. `crop` cuts the square out anywhere, not in the middle.",
     .example = "data: {train: {type: images, path: photos, size: 224, augment: [flip, crop]}}",
     .otherwise_words = "nothing",
     .takes = "`flip`, `crop` or a list of them"},
    {.path = "data.SET.scale",
     .meaning = "`idx`: a pixel becomes (pixel * `scale` - `mean`) / `deviation`.",
     .example = "data: {train: {type: idx, images: i.gz, labels: l.gz, scale: 0.00392}}",
     .otherwise = "1"},
    {.path = "data.SET.mean",
     .meaning = "`idx` and `images`: what is subtracted from a scaled pixel; a pixel of a photo is scaled to "
                "0 to 1. "
                "Of photos also a list of three, for red, green and blue.",
     .example = "data: {train: {type: idx, images: i.gz, labels: l.gz, mean: 0.286}}",
     .otherwise = "0"},
    {.path = "data.SET.deviation",
     .meaning = "`idx` and `images`: what a pixel is divided by at the end; of photos also a list of three.",
     .example = "data: {train: {type: idx, images: i.gz, labels: l.gz, deviation: 0.353}}",
     .otherwise = "1"},
    {.path = "data.SET.classes",
     .meaning = "`images`: `auto` where the labels of a table are texts. They become classes, counted in the "
                "order of their bytes.",
     .example = "data: {train: {type: images, path: photos.csv, size: 224, classes: auto}}",
     .otherwise_words = "labels are whole numbers",
     .takes = "`auto`"},
    {.path = "data.SET.columns",
     .meaning =
         "`csv`: which columns there are, each of one field of the header or of a list of fields. `npz` and "
         "`npy`: what becomes of a column's numbers.",
     .example = "data: {train: {type: csv, path: table.csv, columns: {x: [age, height], y: label}}}",
     .otherwise_words = "with `npz` and `npy` all columns are as they are; with `csv` it is required",
     .takes = "a map of columns"},
    {.path = "data.SET.columns.COLUMN.from",
     .meaning = "`csv`: the field of the header that the column is made of, or a list of fields.",
     .example =
         "data: {train: {type: csv, path: t.csv, columns: {x: {from: [age, height], missing: 0}, y: label}}}",
     .otherwise_words = "the field of the column's name",
     .takes = "a text, or a list of texts"},
    {.path = "data.SET.columns.COLUMN.classes",
     .meaning =
         "`csv`: texts become classes. With `auto` they are counted in the order of their bytes; a list "
         "says their order.",
     .example =
         "data: {train: {type: csv, path: t.csv, columns: {x: [age], y: {from: kind, classes: auto}}}}",
     .otherwise_words = "the column holds numbers",
     .takes = "`auto`, or a list of texts"},
    {.path = "data.SET.columns.COLUMN.missing",
     .meaning = "`csv`: the number that stands for an empty field.",
     .example = "data: {train: {type: csv, path: t.csv, columns: {x: {from: [age], missing: -1}, y: label}}}",
     .otherwise_words = "a missing number is refused"},
    {.path = "data.SET.columns.COLUMN.scale",
     .meaning = "A number becomes (number * `scale` - `mean`) / `deviation`, as float32.",
     .example = "data: {train: {type: npz, path: t.npz, columns: {image: {scale: 0.00392}}}}",
     .otherwise = "1"},
    {.path = "data.SET.columns.COLUMN.mean",
     .meaning = "What is subtracted: one number, or a list with one for each entry of a sample's first axis.",
     .example = "data: {train: {type: npz, path: t.npz, columns: {image: {mean: [0.5, 0.4, 0.4]}}}}",
     .otherwise = "0",
     .takes = "a number, or a list of numbers"},
    {.path = "data.SET.columns.COLUMN.deviation",
     .meaning = "What is divided by, likewise; above 0.",
     .example = "data: {train: {type: npz, path: t.npz, columns: {image: {deviation: 0.25}}}}",
     .otherwise = "1",
     .takes = "a number, or a list of numbers"},
    {.path = "data.SET.columns.COLUMN.augment",
     .meaning = "`npz` and `npy`: as `data.SET.augment`, of pictures [channels, rows, columns].",
     .example = "data: {train: {type: npz, path: t.npz, columns: {image: {augment: flip}}}}",
     .otherwise_words = "nothing",
     .takes = "`flip`, `crop` or a list of them"},
    {.path = "data.SET.columns.COLUMN.size",
     .meaning = "With `augment: crop`, how many pixels an edge has that is cut out.",
     .example =
         "data: {train: {type: npz, path: t.npz, columns: {image: {augment: [flip, crop], size: 28}}}}",
     .otherwise_words = "nothing is cut"},
    {.path = "data.SET.missing",
     .meaning = "`csv`: the same of all columns of numbers.",
     .example = "data: {train: {type: csv, path: t.csv, columns: {x: [age], y: label}, missing: 0}}",
     .otherwise_words = "a missing number is refused"},
    {.path = "data.SET.separator",
     .meaning = "`csv`: what stands between fields.",
     .example = "data: {train: {type: csv, path: t.csv, columns: {x: [age], y: label}, separator: \";\"}}",
     .otherwise = "\",\"",
     .takes = "`,`, `;`, `tab` or `|`"},
    {.path = "data.SET.decimal",
     .meaning = "`csv`: what stands before the fraction of a number.",
     .example = "data: {train: {type: csv, path: t.csv, columns: {x: [age], y: label}, separator: tab, "
                "decimal: \",\"}}",
     .otherwise = "\".\"",
     .takes = "`.` or `,`"},
    {.path = "data.SET.dtype",
     .meaning = "`tokens`: what a token is in the file, little-endian.",
     .example = "data: {train: {type: tokens, path: train.bin, dtype: uint32, sequence_length: 1024}}",
     .otherwise = "uint16",
     .takes = "`uint16` or `uint32`"},
    {.path = "data.SET.sequence_length",
     .meaning = "`text`, `tokens` and `jsonl`: how many tokens a sample has; of `text`, bytes.",
     .example = "data: {train: {type: text, path: corpus.txt, sequence_length: 128}}"},
    {.path = "data.SET.validation",
     .meaning = "`text`, `tokens` and `jsonl`: which part of the end of the file is kept from training, and "
                "evaluated on. Of `jsonl` it is a part of the documents.",
     .example = "data: {train: {type: text, path: corpus.txt, sequence_length: 128, validation: 0.1}}",
     .otherwise = "0"},
    {.path = "data.SET.tokenizer",
     .meaning = "`jsonl`: the model's tokenizer.json, or `bytes` where each byte is a token.",
     .example =
         "data: {train: {type: jsonl, path: d.jsonl, tokenizer: t.json, text: text, sequence_length: 64}}",
     .takes = "the path of a tokenizer.json, or `bytes`"},
    {.path = "data.SET.text",
     .meaning = "`jsonl`: the field that holds a text. All of it is learnt. One that is longer than a sample "
                "goes on in the next one.",
     .example =
         "data: {train: {type: jsonl, path: d.jsonl, tokenizer: bytes, text: text, sequence_length: 64}}",
     .otherwise_words = "an object holds a completion, or messages",
     .takes = "the name of a field"},
    {.path = "data.SET.prompt",
     .meaning = "`jsonl`: the field of what stands before a completion. It is read, and not learnt. A list "
                "of fields is "
                "read with a line for each; an empty one has none.",
     .example = "data: {train: {type: jsonl, path: d, tokenizer: bytes, prompt: q, completion: a, "
                "sequence_length: 9}}",
     .otherwise_words = "an object holds a text, or messages",
     .takes = "the name of a field, or a list of names"},
    {.path = "data.SET.completion",
     .meaning =
         "`jsonl`: the field of what is to be written behind the prompt. What does not fit into a sample "
         "is left out.",
     .example = "data: {train: {type: jsonl, path: d, tokenizer: bytes, prompt: q, completion: a, "
                "sequence_length: 9}}",
     .otherwise_words = "as of `prompt`",
     .takes = "the name of a field"},
    {.path = "data.SET.messages",
     .meaning =
         "`jsonl`: the field of a conversation, a list of `{role, content}` or `{from, value}`. What the "
         "assistant says is learnt, and the token that ends it. What does not fit into a sample is left "
         "out.",
     .example =
         "data: {train: {type: jsonl, path: d, tokenizer: t.json, messages: messages, sequence_length: 9}}",
     .otherwise_words = "an object holds a text, or a completion",
     .takes = "the name of a field"},
    {.path = "data.SET.chat_template",
     .meaning = "`jsonl` with `messages`: how turns are written, `chatml`, `llama3` or `plain`.",
     .example = "data: {train: {type: jsonl, path: d, tokenizer: t, messages: m, chat_template: plain, "
                "sequence_length: 9}}",
     .otherwise_words = "what tokenizer_config.json beside the tokenizer says",
     .takes = "`chatml`, `llama3` or `plain`"},
    {.path = "data.SET.end",
     .meaning = "`jsonl` without `messages`: the token behind each document, by its text.",
     .example = "data: {train: {type: jsonl, path: d, tokenizer: t.json, text: text, end: \"</s>\", "
                "sequence_length: 9}}",
     .otherwise_words = "the eos_token of tokenizer_config.json beside the tokenizer; without that file, the "
                        "tokenizer's only token that ends a text",
     .takes = "the text of a token"},
    {.path = "data.SET.pack",
     .meaning =
         "`jsonl`: `none` gives each document a sample of its own. `across` puts several into one, where "
         "they fit: less is computed for nothing, and documents of a sample see each other in attention. "
         "Their positions begin at 0 each. With `apart` they do not see each other: an input of the model "
         "takes "
         "the column `causal_mask`.",
     .example = "data: {train: {type: jsonl, path: d, tokenizer: t.json, text: text, pack: across, "
                "sequence_length: 9}}",
     .otherwise = "none",
     .takes = "`none`, `across` or `apart`"},
    {.path = "shuffle",
     .meaning = "Whether each epoch has its samples in another order.",
     .example = "shuffle: false",
     .otherwise = "true"},
};

}  // namespace

std::span<const JobKey> data_job_keys() { return kData; }

}  // namespace weft::configs
