#include "cli/command_line.h"

namespace holdfast::cli {
namespace {

constexpr std::string_view kRoot = R"(Start here:
  holdfast inspect models/gptoss-tiny-A
  holdfast generate --model models/gptoss-tiny-A --prompt "ROMEO:"
  holdfast drill --from models/gptoss-tiny-A --to models/gptoss-tiny-B
  holdfast plan --model models/gptoss-tiny-A --to models/gptoss-tiny-B
  holdfast serve models/gptoss-tiny-A
  holdfast COMMAND --help

Exit codes: 0 done; 1 something failed or differs, or the drill is RED; 2 wrong usage,
or a drill whose fault was NOT INJECTED.
Results go to stdout, everything else to stderr; progress is shown on a terminal only.)";

constexpr std::string_view kGenerate = R"(Examples:
  holdfast generate --model DIR --prompt "ROMEO:" --max-tokens 64
  holdfast generate --model DIR --prompt "ROMEO:" --temperature 0.8 --top-p 0.95 --seed 7 --json
  holdfast generate --model DIR --prompt "ROMEO:" --stop "JULIET:" --stop "NURSE:"
  holdfast generate --model DIR --input prompts.jsonl > results.jsonl
  echo '{"prompt_ids": [312, 34], "max_tokens": 8}' | holdfast generate --model DIR --input -

A line of --input is one JSON object:
  prompt | prompt_ids            exactly one: a text, or token ids
  id                             a string or an integer, given back with the result
  temperature top_p top_k min_p seed max_tokens ignore_eos stop_token_ids prompt_logprobs
                                 as the flags, which are the default of every line
Results are JSON Lines in the order of the input, whatever finishes first:
  id ids text logprobs finish_reason epoch epochs (and prompt_logprobs where asked for)
`ids` ends with the token that ended the request; `text` shows neither a stop token nor what --stop,
which holds for every line, has found. A model without a tokenizer.json takes prompt_ids and gives
no text. `epoch` says which weights made the last token, `epochs`
which made each. A log probability of minus infinity is null.

The whole input is checked before anything runs: a line that is wrong stops the command with its
file, line and field, and nothing is generated. Should a line fail later, the others come back all
the same; its result holds `error`, and the exit code is 1.)";

constexpr std::string_view kScore = R"(Examples:
  holdfast score --model DIR --input texts.jsonl
  holdfast score --model DIR --input ids.jsonl --logits logits.safetensors
  echo '{"text": "ROMEO:\nAy me!"}' | holdfast score --model DIR --input -

A line holds `ids` (or `prompt_ids`), or `text` (or `prompt`), and may hold `id`. It comes back as
  index id ids logprobs sum epoch
with logprobs[i] = log p(ids[i + 1] | ids[0..i]), natural logarithm, one fewer than the ids.
--logits: line N (the first is 0) becomes the float32 tensor logits.N of shape [positions, vocab];
row p holds the logits after position p. The file appears when it is complete.
The whole input is checked before anything runs.)";

constexpr std::string_view kTokenize = R"(Examples:
  holdfast tokenize --model DIR --text "Hello there"
  echo '{"text": "Hello there"}' | holdfast tokenize --model DIR --input -
  echo '{"ids": [39, 68, 257]}' | holdfast tokenize --model DIR --input - --decode

{"text"} comes back as {"ids"}, with --decode {"ids"} as {"text"}; an `id` is given back.
Special tokens in a text (<|start|>) become their ids, unless --plain-text is given.
A line that is wrong stops the command, and nothing is written.)";

constexpr std::string_view kChat = R"(Examples:
  holdfast chat --model DIR
  holdfast chat --model DIR --instructions "Answer in one line." --effort low
  printf 'Hello\n/reset\nHello again\n' | holdfast chat --model DIR --json

Each line of input is one message. /reset starts over, /quit or the end of input ends the chat;
Ctrl-C ends a reply, and between replies the chat.
A reply shows its channels, [analysis] before [final]; with --json it is one line:
  {"messages": [{"channel", "text"}], "finish_reason", "tokens", "epoch"})";

constexpr std::string_view kInspect = R"(Examples:
  holdfast inspect models/gptoss-tiny-A
  holdfast inspect models/gptoss-tiny-A --tensors
  holdfast inspect models/gptoss-tiny-A --json | python3 -m json.tool
  holdfast inspect --matrix

Reads config, headers and tokenizer, not the weights, and lists everything that is missing, unknown
or mismatched at once. Exit code 1 when the model cannot be loaded.)";

constexpr std::string_view kDrill = R"(Examples:
  holdfast drill --from models/gptoss-tiny-A --to models/gptoss-tiny-B
  holdfast drill --from A --to B --json report.json --commit copy
  holdfast drill --from A --to B --inject rebind-constants      (must say RED)

Loads A, captures the decode graphs, counts (census), generates greedily, reloads A over A and
generates again, reloads to B while requests are running, counts, generates, allocates, dirties and
frees memory, generates and counts again, and compares with an engine that loads B afresh: every
address stable, every value B's, every token and log probability equal bit for bit.
GREEN is exit code 0; RED is 1, with the reasons and the slots. NOT INJECTED is 2: the fault has
nothing to act on in this model, so that neither was shown.

--inject makes every reload do what an engine with a known defect does:
  rebind-constants   the experts' constants are rebuilt in fresh storage, unknown to the graphs
  stale-derived      a packed weight keeps the bytes of the old checkpoint
  skip-layer         one layer is not loaded
  drop-sink          the attention sinks are not loaded
and where the experts' backend has such slots (--experts NAME):
  rebuilt-workspace  its locks are rebuilt in fresh storage
  reregistered-scale its chain of scales is
  stale-alpha        the factors of its accumulators keep their old values
  stale-sort-index   act-order's sort indices do
  stale-permutation  act-order's permutation of the inputs does
  shuffle-twice      its packing is applied to what is packed already
  no-shuffle         its packing is left out
or makes the device fail, or the source, in the live reload:
  allocation-fails   the memory to stage in           (remap, copy)
  copy-fails         half-way through the commit      (copy)
  exchange-fails     the second of the commit         (remap)
  protect-fails      write-protecting in the commit
  launch-fails       a kernel that packs weights
  device-lost        half-way through the commit, and from then on until it has ended
  short-read source-dies truncated replaced           a read, and files that change while read
  nan bad-scale      values that no arithmetic can use
  garbage            other weights than the checkpoint's: only digests (holdfast verify
                     --write-digests) or a comparison can tell
  cancelled deadline the reload is called off, or its source stalls
The drill says RED with what the engine said. It then checks that the old weights serve on bit for
bit (`refused_cleanly`), or, where nothing could be undone, that the engine is poisoned and emits
nothing (`emits_nothing`), and that the same reload without the fault is committed (`recovered`).)";

constexpr std::string_view kCensus = R"(Examples:
  holdfast census --model DIR
  holdfast census --model DIR --verbose
  holdfast census --model DIR --json > census.json
  holdfast census --model DIR --graphs

Loads the model and captures its graphs, then counts: every slot with its address, bytes, class,
epoch and digest, and the slot in which each captured address lies. Exit code 1 if one has none.

--graphs reads the captured graphs themselves back (on a GPU each node's parameters, from CUDA's own
graph) and shows for each node every pointer, the operand that it is, and its slot; the last line
has the figures. Exit code 1 for a pointer in no slot, or a node that cannot be read.

--inject FAULT reloads first (--to DIR, or the model over itself), with a fault of the drill's list
(holdfast drill --help), and says what became of it: this is what such an engine looks like to a
debugger. Exit code 1 if the reload was not committed, or if a captured address has lost its slot.
Weights that are merely stale look sound here; the drill finds them.)";

constexpr std::string_view kPlan = R"(Examples:
  holdfast plan --model A --to B
  holdfast plan --model A --to B --commit auto --max-pause-us 500 --max-extra-bytes 2000000000
  holdfast plan --model A --to B --layers 0,2 --experts 1/7,1/8 --json
  holdfast plan --model A --to B --cast lm_head.weight:f32:bf16 --apply-constants

Loads A, accounts for every tensor of B both ways, and says what a reload would do, in which order,
with the peak memory on device and host and the expected pause of each commit strategy; or why it
would be refused, naming both sides (exit code 1). Nothing is replaced.
A part (--layers, --experts, --parameters: their union) must be made of whole units, such as a
weight with its scale; the rest of B is not read.)";

constexpr std::string_view kVerify = R"(Examples:
  holdfast verify --model DIR
  holdfast verify --model DIR --write-digests digests.json     (by whoever trained it)
  holdfast verify --model DIR --digests digests.json

Loads the model and reads every versioned byte again: each slot's digest against the commit's, each
constant against its value, the padding against zero. With --digests each tensor of the checkpoint
is held against a JSON object from tensor names to XXH3-128 digests (32 hex digits of the tensor's
bytes); tensors that it does not list are counted. Exit code 1 when anything differs.)";

}  // namespace

std::string_view help_footer(std::string_view command) {
  if (command.empty()) return kRoot;
  if (command == "generate") return kGenerate;
  if (command == "score") return kScore;
  if (command == "tokenize") return kTokenize;
  if (command == "chat") return kChat;
  if (command == "inspect") return kInspect;
  if (command == "drill") return kDrill;
  if (command == "census") return kCensus;
  if (command == "plan") return kPlan;
  if (command == "verify") return kVerify;
  return {};
}

}  // namespace holdfast::cli
