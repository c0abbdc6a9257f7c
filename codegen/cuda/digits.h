// Codes that are digits of a byte, on their way into a block. In front of this stand CODES of a block, the BASE of digits, how many of them
// make a byte (DIGITS), NUMBERS that they make, DIGIT_BYTES of a block that hold some, and the tables `digit_bytes` and `digit_elements`.

// Keeps the code of element i of the warp's block.
template <class Codes> GM_DEVICE void put_digit(Codes all_codes, u32 i, u32 code) {
    all_codes[gm_warp() * (CODES + 1) + i] = (u8)code;
}

// Puts the bytes of all codes into the words of the warp's block.
template <class Words, class Codes> GM_DEVICE void gather_digits(Words all_words, Codes all_codes, u32 words) {
    const u32 codes = gm_warp() * (CODES + 1);
    // What no element has is 0.
    if (gm_lane() == 0) all_codes[codes + CODES] = 0;
    gm_sync_warp();
    for (u32 i = gm_lane(); i < DIGIT_BYTES; i += 32) {
        u32 number = 0;
        for (u32 d = 0; d < DIGITS; d++) number = number * BASE + all_codes[codes + digit_elements[i * DIGITS + d]];
        const u32 byte = (number * 256 + NUMBERS - 1) / NUMBERS;
        gm_shared_or(all_words, words + digit_bytes[i] / 4, byte << (8 * (digit_bytes[i] % 4)));
    }
    gm_sync_warp();
}

